// A page in a file: a job, or several side by side, as they were when it was written. The file holds the service's
// answers, and asks no service. With "#png" or "#svg" only its charts remain, as pictures.

import { pictures } from "./charts/panel.js";
import { element } from "./dom.js";
import { comparePage } from "./pages/compare/compare.js";
import { jobPage } from "./pages/job/job.js";
import { seeAll } from "./pages/job/sight.js";
import { keepPrintable } from "./printing.js";
import { keepTimes } from "./times.js";

const PAGES = { compare: comparePage, job: jobPage };
const held = JSON.parse(document.getElementById("held").textContent);

window.fetch = async (address) => {
  const asked = new URL(address, "http://file.invalid");
  // Not a 404: the service may have it.
  const path = decodeURIComponent(asked.pathname);
  if (!(path in held.answers)) return Response.json({ detail: "this file does not have it" }, { status: 501 });
  const answer = held.answers[path];
  const [trial, stages] = [asked.searchParams.get("trial"), asked.searchParams.getAll("stage")];
  const isAsked = (each) => each.trial_id === trial && (!stages.length || stages.includes(String(each.stage)));
  return Response.json(trial ? answer.filter(isAsked) : answer);
};
history.replaceState = history.pushState = () => {}; // a file has no address of its own to change

// The chart library is stored compressed, at a third of its size.
const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (each) => each.charCodeAt(0));
const library = new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")), { headers: { "Content-Type": "text/javascript" } });
document.querySelector('meta[name="plotly"]').content = URL.createObjectURL(await library.blob());

const root = document.getElementById("page");
document.getElementById("made").textContent = `as of ${held.made}`;
keepTimes(document.getElementById("times"));
keepPrintable(document.getElementById("print"));
await PAGES[held.page](root, held.of, new URLSearchParams(), () => {}).refresh();
root.querySelectorAll('a[href^="/"]').forEach((link) => link.removeAttribute("href")); // of the service
const format = location.hash.slice(1);
if (format) {
  await seeAll();
  const drawn = JSON.stringify(await pictures(format));
  const text = btoa(Array.from(new TextEncoder().encode(drawn), (byte) => String.fromCharCode(byte)).join(""));
  document.documentElement.replaceChildren(element("body", {}, element("pre", { id: "pictures" }, text)));
}
window.__ready = true;
