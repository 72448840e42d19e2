// Which page, and its heartbeat. `window.__ready` is set once the first page is drawn.

import * as api from "./api.js";
import { element } from "./dom.js";
import { jobPage } from "./job.js";
import { listPage } from "./list.js";

const root = document.getElementById("page");
const notice = document.getElementById("notice");

function open() {
  const id = new URLSearchParams(location.search).get("job");
  const page = id ? jobPage(root, id) : listPage(root);
  beat(page);
  addEventListener("visibilitychange", () => document.hidden || page.refresh().catch(() => {}));
}

async function beat(page) {
  try {
    if (!document.hidden || !window.__ready) await page.refresh();
    tell("");
  } catch (error) {
    if (error instanceof api.NeedsKey) return askForKey(error.message);
    tell(error instanceof api.Refused ? error.message : `The service does not answer (${error.message}); trying again.`);
  }
  window.__ready = true;
  setTimeout(() => beat(page), page.everyMs());
}

function tell(text) {
  if (notice.textContent !== text) notice.textContent = text;
}

function askForKey(why) {
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", placeholder: "wt_…" });
  const submit = (event) => {
    event.preventDefault();
    api.setKey(input.value.trim());
    open();
  };
  root.replaceChildren(element("form", { class: "panel", onsubmit: submit },
    element("h1", {}, "Key"),
    element("p", {}, `${why} The first one is in the service's state directory, in the file api_key.`),
    element("label", { for: "key" }, "API key"), input,
    element("button", { type: "submit" }, "Open")));
  input.focus();
  window.__ready = true;
}

api.takeKeyFromAddress();
open();
