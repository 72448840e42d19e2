// Links to the visible parts of a long page.

import { element, patch } from "../../dom.js";

// `lists` hold the parts. An address with a part's name leads there, once it is drawn.
export function parts(...lists) {
  const body = element("nav", { class: "parts", "aria-label": "Parts of this page", tabindex: "0" });  // it scrolls on a narrow screen
  let isSought = location.hash !== "";

  function update() {
    const shown = lists.filter((list) => !list.hidden).flatMap((list) => [...list.children]).filter((each) => !each.hidden && each.querySelector("h2"));
    patch(body, ...shown.map(link));
    const sought = isSought && shown.find((each) => `#${each.getAttribute("id")}` === location.hash);
    if (!sought) return;
    isSought = false;
    sought.scrollIntoView();
  }

  return { body, update };
}

// A page in a file hides what only the service has, and the links to it.
function link(part) {
  const [id, isOnline] = [part.getAttribute("id"), part.getAttribute("class").split(" ").includes("online")];
  return element("a", { key: id, href: `#${id}`, class: isOnline ? "online" : null }, part.querySelector("h2").textContent);
}
