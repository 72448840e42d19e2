// A question over the page, and the text of a refusal.

import { NeedsKey, Refused } from "./api.js";
import { element } from "./dom.js";

export function reason(error) {
  if (error instanceof Refused || error instanceof NeedsKey) return error.message;
  return `The service did not answer (${error.message}). Whether it heard, the job's state will show.`;
}

// Answers: {label, kind, act}. If `act` returns false or is refused, the question stays open. Resolves once it is closed.
// The browser keeps the focus inside, closes it on Escape, and restores the focus.
export function question({ title, content, answers }) {
  const refused = element("p", { class: "refused", role: "alert" });
  const back = element("button", { type: "button", onclick: () => dialog.close() }, "back");
  const buttons = answers.map(({ label, kind }, at) => element("button", { type: "submit", value: at, class: kind }, label));
  const fields = element("fieldset", {}, ...content, refused, element("div", { class: "buttons" }, back, ...buttons));
  const form = element("form", { onsubmit: submit }, element("h2", { id: "question" }, title), fields);
  const dialog = element("dialog", { "aria-labelledby": "question" }, form);

  async function submit(event) {
    event.preventDefault();
    const { act } = answers[event.submitter?.value ?? 0];
    refused.textContent = "";
    fields.disabled = true;
    try {
      if ((await act()) !== false) dialog.close();
    } catch (error) {
      refused.textContent = reason(error);
    } finally {
      fields.disabled = false;
      event.submitter?.focus(); // which was lost meanwhile
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  return new Promise((closed) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      closed();
    });
  });
}
