// Python tracebacks in a log, with the reader's own lines first.

const FIRST = "Traceback (most recent call last):";
const IGNORED = "Exception ignored in";
const BROUGHT = /^(?:ray\.exceptions\.RayTaskError\(\w+\): )?ray::/; // the process that an error comes from; its frames follow
const FRAME = /^\s+File "([^"]+)", line (\d+)(?:, in (.+))?$/;
// Code of Python and of installed packages, which the reader did not write.
const FOREIGN = /(?:site|dist)-packages|\/lib\/python\d|^</;
// Nor is this product's code, in a checkout: a folder unique to it marks it, since the reader may have a `service/control`, too.
const CHECKOUT = /^\s+File "(.*?)\/(?:service\/cluster\/(?:entrypoint|tune_trial)|trainers\/(?:(?:exchange|methods)\/.+|training\/(?:rank|replica)))\.py", line/;
const PACKAGES = ["api", "search", "service", "trainers", "wiretune"];
const PREFIX = /^\([^)]*pid=[^)]*\)\s?/; // Ray names the process at the start of a line
const OVERWRITTEN = /^[^]*\r(?!\r*$)|\r+$/g; // a progress bar writes its line again and again
const COLOUR = /\x1b\[[0-9;]*m/g;

export const plain = (line) => line.replace(OVERWRITTEN, "").replace(COLOUR, "").replace(PREFIX, "");

// Returns each traceback of `text` as {error, own, others}; frames are {file, line, name, code}. Ignored exceptions are left out.
export function tracebacks(text) {
  const lines = text.split("\n").map(plain);
  const checkouts = new Set(lines.flatMap((line) => CHECKOUT.exec(line)?.[1] ?? []));
  const products = [...checkouts].flatMap((folder) => PACKAGES.map((name) => `${folder}/${name}/`));
  const isOwn = ({ file }) => !FOREIGN.test(file) && !products.some((each) => file.startsWith(each));
  const found = [];
  for (let at = 0; at < lines.length; at++) {
    const isFirst = lines[at].endsWith(FIRST) && !lines[at - 1]?.startsWith(IGNORED);
    if (!isFirst && !BROUGHT.test(lines[at])) continue;
    const frames = [];
    let end = at + 1;
    for (; end < lines.length && (/^\s+\S/.test(lines[end]) || BROUGHT.test(lines[end])); end++) {
      const frame = FRAME.exec(lines[end]);
      if (frame) frames.push({ file: frame[1], line: Number(frame[2]), name: frame[3] ?? "", code: "" });
      else if (frames.length && !frames.at(-1).code) frames.at(-1).code = lines[end].trim();
    }
    if (frames.length) found.push({ error: (lines[end] ?? "").trim(), own: frames.filter(isOwn), others: frames.filter((frame) => !isOwn(frame)) });
    at = end - 1; // an error may be told with another's traceback: `worker 0 failed: Traceback …`
  }
  return found;
}
