// The address of what is shown. A page may change it by itself, and stays; "back" makes it anew.

let shown = location.search;

// `search` begins with "?", or is empty.
export function go(search, { replaces = false } = {}) {
  shown = search;
  history[replaces ? "replaceState" : "pushState"](null, "", search || location.pathname);
}

// Calls `open` when the address is another one by "back" or "forward".
export function whenTurned(open) {
  addEventListener("popstate", () => {
    if (location.search === shown) return; // a place on the same page
    shown = location.search;
    open();
  });
}
