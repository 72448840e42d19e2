// Which page, and its heartbeat. `window.__ready` is set once the first page is drawn.

import * as api from "./api.js";
import { reason } from "./dialog.js";
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
    if (error instanceof api.NeedsKey) return askForKey();
    tell(error instanceof api.Refused ? error.message : `The service does not answer (${error.message}); trying again.`);
  }
  window.__ready = true;
  setTimeout(() => beat(page), page.everyMs());
}

function tell(text) {
  if (notice.textContent !== text) notice.textContent = text;
}

function askForKey() {
  const input = element("input", { id: "key", type: "password", autocomplete: "off", required: "", placeholder: "wt_…" });
  const refused = element("p", { class: "refused", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await api.signIn(input.value.trim());
      open();
    } catch (error) {
      refused.textContent = reason(error);
    }
  };
  root.replaceChildren(element("form", { class: "panel", onsubmit: submit },
    element("h1", {}, "Sign in"),
    element("p", {}, "The command `wiretune page` prints a link that signs you in. So does an API key: it is sent once, and not kept here."),
    element("label", { for: "key" }, "API key"), input,
    element("button", { type: "submit" }, "Sign in"), refused));
  input.focus();
  window.__ready = true;
}

const reload = () => location.reload();
document.getElementById("sign-out").addEventListener("click", () => api.signOut().then(reload, reload));
// A code that was used before is no harm: there may be a session.
api.takeCodeFromAddress().catch((error) => tell(reason(error))).then(open);
