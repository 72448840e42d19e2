// The address of what is shown. A page may change its own address without a reload; "back" opens the page again.

let shown = location.search;

// `search` begins with "?", or is empty.
export function go(search, { replaces = false } = {}) {
  history[replaces ? "replaceState" : "pushState"](null, "", (search || location.pathname) + (replaces ? location.hash : ""));
  shown = search;
}

// Calls `open` when "back" or "forward" leads to another address.
export function whenTurned(open) {
  addEventListener("popstate", () => {
    if (location.search === shown) return; // a place on the same page
    shown = location.search;
    open();
  });
}
