// Times, shown as an age or as a moment; the reader chooses for all of them.

import { element, patch } from "./dom.js";
import { age, moment } from "./units.js";

const KEPT = "wiretune exact times";
const RENEWED_MS = 20000;

let isExact = false;

export const since = (given) => {
  const [shown, other] = isExact ? [moment(given), age(given)] : [age(given), moment(given)];
  return element("time", { datetime: given, title: other, class: isExact ? "exact" : null }, shown);
};

// `button`, and a click on any time, switch all of them; a new page keeps the last choice.
export function keepTimes(button) {
  const renew = () => document.querySelectorAll("time").forEach((each) => {
    const fresh = since(each.dateTime);
    [each.title, each.className] = [fresh.title, fresh.className];
    patch(each, fresh.textContent);
  });
  const show = (given) => {
    isExact = given;
    button.setAttribute("aria-pressed", String(isExact));
    renew();
  };
  const turn = () => {
    show(!isExact);
    keep(isExact);
  };
  button.addEventListener("click", turn);
  document.addEventListener("click", ({ target }) => target.closest("time") && getSelection().isCollapsed && turn());
  setInterval(renew, RENEWED_MS);
  show(wasExact());
}

// A browser may refuse storage, for example to a page in a frame.
function wasExact() {
  try {
    return localStorage.getItem(KEPT) === "true";
  } catch {
    return false;
  }
}

function keep(value) {
  try {
    localStorage.setItem(KEPT, String(value));
  } catch {
    // then it holds for this page only
  }
}
