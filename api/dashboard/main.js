// Chooses the page and keeps it up to date. `window.__ready` is set once the first page is drawn.

import { whenTurned } from "./address.js";
import * as api from "./api.js";
import { reason } from "./dialog.js";
import { element, patch } from "./dom.js";
import { comparePage } from "./pages/compare/compare.js";
import { jobPage } from "./pages/job/job.js";
import { auditPage } from "./pages/audit.js";
import { clusterPage } from "./pages/cluster.js";
import { jobsPage } from "./pages/jobs/jobs.js";
import { keysPage } from "./pages/keys.js";
import { clonePage, submitPage } from "./pages/submit/submit.js";
import { listen, paced, unseen } from "./live/live.js";
import { keepPrintable } from "./printing.js";
import { keepTimes } from "./times.js";

// A page is named by its own parameter: "/?job=ID". If it got no answer it calls `ask`; the problem is shown then, and the
// page refreshed until it has one. Each page has `refresh`, and `shows` for a changed job, with whether that is in another
// state, edited, new or gone. `missed` says that changes may be lost. `retitle`, where a page has it, updates only the
// tab's title, for a hidden tab. `ages` says whether a page shows things that change without an event, such as places in
// the queue and nodes of Ray.
const PAGES = {
  job: jobPage,
  compare: comparePage,
  submit: submitPage,
  clone: clonePage,
  cluster: clusterPage,
  keys: keysPage,
  audit: auditPage,
  jobs: jobsPage,
};

const STATES = { connecting: "connecting …", live: "live", waiting: "reconnecting …", refused: "signed out" };

const AGED_MS = 5000;
const TITLE_MS = 12000;

const root = document.getElementById("page");
const notice = document.getElementById("notice");
const connection = document.getElementById("connection");
const caller = document.getElementById("caller");
const nav = [...document.querySelectorAll("header nav a")];
const release = document.querySelector('meta[name="release"]').content; // of these scripts
let told = ""; // what stands in the notice: what is wrong with the last answer,
let other = null; // and the release that the service has now, where it is another one
let ignored = null; // one of which the reader knows
let page = null;
let left = null; // what stood here when the session ended: {page, nodes, address}

const ask = paced(
  async () => {
    await page?.refresh();
    tell("");
    if (page) showCaller(await api.me());
    window.__ready = true;
  },
  (error) => {
    window.__ready = true;
    if (error instanceof api.NeedsKey) return askForKey();
    tell(error instanceof api.Refused ? error.message : `The service does not answer (${error.message}); trying again.`);
    return true;
  },
  { gapMs: 1000 },
);

// A failure here is shown once the page is visible.
const retitle = unseen(() => page?.retitle?.().catch(() => {}), TITLE_MS);

function open() {
  left = null;
  const asked = new URLSearchParams(location.search);
  const name = Object.keys(PAGES).find((each) => asked.get(each)) ?? "jobs";
  for (const link of nav) link.ariaCurrent = pageOf(link) === name ? "page" : null;
  page = PAGES[name](root, asked.get(name), asked, ask);
  ask();
}

// The signed-in user, and the service's release. Pages that are useless to the role are not offered.
function showCaller(me) {
  caller.textContent = `${me.name} · ${me.role} · project ${me.project}`;
  for (const link of nav) link.hidden = link.dataset.may !== undefined && !me.may.includes(link.dataset.may);
  other = [release, ignored, ""].includes(me.release) ? null : me.release;
  drawNotice();
}

const pageOf = ({ pathname, search }) => (pathname === "/" ? (/^\?(\w+)=/.exec(search)?.[1] ?? "jobs") : null);

// A new stream is followed by a refresh: changes before it, or while it was away, were not sent.
function hear({ state, jobs, moved }) {
  if (state) {
    connection.className = state;
    connection.textContent = STATES[state];
  }
  if (state === "live" || state === "refused") api.forget(); // who is signed in, if anybody, may be another one by now
  if (state === "live" && !page) goOn(); // another tab has signed in
  else if (state === "live" || state === "refused") {
    page?.missed?.();
    ask();
    retitle(true);
  } else if (page) {
    const shown = jobs.filter((job) => page.shows(job, moved.includes(job)));
    if (!shown.length) return;
    ask();
    retitle(shown.some((job) => moved.includes(job)));
  }
}

function tell(text) {
  told = text;
  drawNotice();
}

// It does not reload by itself: the reader may be writing.
function drawNotice() {
  patch(notice, told ? element("p", { key: "told", class: "failed" }, told) : null,
    ...(other ? [element("p", { key: "other" }, `The service runs release ${other} now. This page is of ${release}.`),
      element("div", { key: "choice", class: "buttons" },
        element("button", { type: "button", class: "primary", onclick: () => location.reload() }, "load it anew"),
        element("button", { type: "button", onclick: ignore }, "later"))] : []));
}

function ignore() {
  [ignored, other] = [other, null];
  drawNotice();
}

function askForKey() {
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", placeholder: "wt_…" });
  const refused = element("p", { class: "refused", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await api.signIn(input.value.trim());
      again();
      goOn();
    } catch (error) {
      refused.textContent = reason(error);
    }
  };
  const issuer = document.querySelector('meta[name="sign-in"]').content;
  const here = encodeURIComponent(location.pathname + location.search);
  const issued = root.querySelector(".issued:not([hidden])"); // a secret that nobody can look up again
  const place = document.createComment("");
  issued?.replaceWith(place);
  const nodes = new DocumentFragment();
  nodes.append(...root.childNodes);
  left ??= { page, nodes, address: location.href, putBack: () => issued && place.replaceWith(issued) };
  page = null;
  tell("");
  caller.textContent = "";
  root.replaceChildren(...(issued ? [issued] : []), element("form", { class: "panel", onsubmit: submit },
    element("h1", {}, "Sign in"),
    ...(issuer ? [element("button", { type: "button", class: "primary", onclick: () => location.assign(`${issuer}?to=${here}`) },
      "Sign in with your organisation's account"), element("p", {}, "Or with a key:")] : []),
    element("p", {}, "The command `wiretune page` prints a link that signs you in. So does an API key: it is sent once, and not kept here."),
    element("label", { for: "key" }, "API key"), input,
    element("button", { type: "submit" }, "Sign in"), refused));
  input.focus();
  return false;
}

// What the reader was writing when the session ended is still there afterwards.
function goOn() {
  if (!left?.page || left.address !== location.href) return open();
  left.putBack();
  root.replaceChildren(left.nodes);
  page = left.page;
  left = null;
  page.missed?.();
  ask();
}

connection.textContent = STATES.connecting;
keepTimes(document.getElementById("times"));
keepPrintable(document.getElementById("print"));
// A used code does no harm: there may be a session.
const isNew = await api.takeCodeFromAddress().catch((error) => tell(reason(error)));
const again = listen(hear, new URLSearchParams(location.search).get("job"));
if (isNew) again();
const isAway = () => !document.hidden && connection.className === "waiting";
document.addEventListener("visibilitychange", () => isAway() && again());
addEventListener("online", again);
const leave = () => {
  again();
  location.reload();
};
setInterval(() => page?.ages?.() && ask(), AGED_MS);
whenTurned(open);
document.getElementById("sign-out").addEventListener("click", () => api.signOut().then(leave, leave));
open();
