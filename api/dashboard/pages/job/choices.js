// The reader's choices on how to see a job, kept in the address, so that a link shows the same to others.

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
    const address = new URL(location.href);
    if (value === defaults[name]) address.searchParams.delete(name);
    else address.searchParams.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
    history.replaceState(history.state, "", address);
    changed(name);
  }

  return { held, choose };
}
