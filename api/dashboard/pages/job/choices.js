// The reader's choices on how to see a job, kept in the address, so that a link shows the same to others.

import { go } from "../../address.js";

// `defaults` by name, each a text, a number or a boolean. `changed` is called after each change.
export function choices(defaults, changed) {
  const asked = new URLSearchParams(location.search);
  const read = (name, standard) => {
    const text = asked.get(name);
    if (text === null) return standard;
    if (typeof standard === "boolean") return text === "1";
    return typeof standard === "number" ? Number(text) || 0 : text;
  };
  const held = Object.fromEntries(Object.entries(defaults).map(([name, standard]) => [name, read(name, standard)]));

  function choose(name, value) {
    held[name] = value;
    changed(name);
    try {
      go(search(), { replaces: true });
    } catch {
      // Safari refuses so many changes in so short a time; the next one that it takes has them all
    }
  }

  function search() {
    const asked = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(held)) {
      if (value === defaults[name]) asked.delete(name);
      else asked.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
    }
    return `?${asked}`;
  }

  return { held, choose };
}
