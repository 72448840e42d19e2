// Python's tracebacks in a log: the reader's own lines first.

const FIRST = "Traceback (most recent call last):";
const IGNORED = "Exception ignored in";
const BROUGHT = /^(?:ray\.exceptions\.RayTaskError\(\w+\): )?ray::/; // the process that an error comes from; its frames follow
const FRAME = /^\s+File "([^"]+)", line (\d+)(?:, in (.+))?$/;
// Of Python, of installed packages, of this product: not what the reader wrote.
const FOREIGN = /(?:site|dist)-packages|\/lib\/python\d|^<|\/(?:trainers|service|search|api|wiretune)\/(?:[\w]+\/)*\w+\.py$/;
const PREFIX = /^\([^)]*pid=[^)]*\)\s?/; // Ray names the process at the start of a line
const COLOUR = /\x1b\[[0-9;]*m/g;

export const plain = (line) => line.replace(COLOUR, "").replace(PREFIX, "");

// Returns each traceback of `text` as {error, own, others}; frames are {file, line, name, code}. What Python ignored is none.
export function tracebacks(text) {
  const lines = text.split("\n").map(plain);
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
    const isOwn = (frame) => !FOREIGN.test(frame.file);
    if (frames.length) found.push({ error: (lines[end] ?? "").trim(), own: frames.filter(isOwn), others: frames.filter((frame) => !isOwn(frame)) });
    at = end - 1; // an error may be told with another's traceback: `worker 0 failed: Traceback …`
  }
  return found;
}
