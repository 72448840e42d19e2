// Builds and updates elements. Text is inserted as text, so nothing in a job can become markup.

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onfocus"];

// `key` tells the element from its siblings when `patch` looks for it again.
export const element = (tag, properties, ...children) => filled(document.createElement(tag), properties, children);

// The same for SVG elements.
export const drawn = (tag, properties, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

function filled(made, { key, ...properties } = {}, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (HANDLERS.includes(name)) made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.key = key;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Makes `children` the children of `live`, and reuses the nodes that are there: focus, selection and scroll position stay.
// A handler must find its element by `event.currentTarget`.
export function patch(live, ...children) {
  const wanted = children.filter((child) => child !== null && child !== undefined)
    .map((child) => (typeof child === "string" ? document.createTextNode(child) : child));
  const stay = new Set(wanted.filter(isKeyed).map((child) => child.key));
  for (const node of [...live.childNodes]) if (isKeyed(node) && !stay.has(node.key)) node.remove();
  const keyed = new Map([...live.childNodes].filter(isKeyed).map((node) => [node.key, node]));
  let next = live.firstChild;
  for (const fresh of wanted) {
    const found = fresh.parentNode === live ? fresh : isKeyed(fresh) ? keyed.get(fresh.key) : alike(next, fresh);
    const kept = found?.nodeName === fresh.nodeName ? renewed(found, fresh) : fresh;
    if (kept === next) next = next.nextSibling;
    else live.insertBefore(kept, next);
  }
  while (next) {
    const node = next;
    next = node.nextSibling;
    node.remove();
  }
}

const isKeyed = (node) => node.key !== undefined;

function alike(next, fresh) {
  while (next && (isKeyed(next) || next.nodeName !== fresh.nodeName)) next = next.nextSibling;
  return next;
}

function renewed(live, fresh) {
  if (live === fresh) return live; // it looks after itself
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== fresh.data) live.data = fresh.data;
    return live;
  }
  for (const { name } of [...live.attributes]) if (!fresh.hasAttribute(name)) live.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  for (const name of HANDLERS) live[name] = fresh[name];
  [live.draw, live.order] = [fresh.draw, fresh.draw && live.order];
  patch(live, ...(live.order ? [live.draw(live.order)] : fresh.childNodes));
  return live;
}

// Draws again only if an input has changed.
export function whenChanged(draw) {
  let before = null;
  return (...inputs) => {
    if (before && inputs.every((each, at) => each === before[at])) return undefined;
    before = inputs;
    return draw(...inputs);
  };
}

// Runs `act` once per call, one at a time. Each run starts after the previous one has ended or failed.
export function inTurn(act) {
  let turn = Promise.resolve();
  return (...given) => {
    turn = turn.catch(() => {}).then(() => act(...given));
    return turn;
  };
}

// Returns the same object for the same inputs, so that its readers see that nothing has changed.
export function whenKept(make) {
  let [inputs, made] = [null, null];
  return (...given) => {
    if (!inputs || given.some((each, at) => each !== inputs[at])) [inputs, made] = [given, make(...given)];
    return made;
  };
}

// Columns: [heading, row => text or element, kind, row => value], kind one of "", "number", "name", "text". The heading of a
// column with values, or of text alone, sorts the rows. `note` is shown below its row, and `key` tells rows apart. `total`
// has the texts of a last row by their headings, where there are several rows. A keyboard can scroll the table. With
// `isStacked`, each row is a stack on a narrow screen; only ARIA roles then make it a table to a browser.
export function table(caption, columns, rows, options = {}) {
  const draw = (order) => drawnTable(caption, columns, rows, options, order);
  const body = element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, draw(null));
  body.draw = draw; // in the order that the reader has chosen, which `patch` keeps
  return body;
}

function drawnTable(caption, columns, rows, { note = null, key = (_, at) => at, total = null, isStacked = false }, order) {
  const as = (role, properties = {}) => (isStacked ? { ...properties, role } : properties);
  const heads = columns.map((column) => {
    const [name, , kind] = column;
    const isSorted = order?.name === name ? (order.isDown ? "descending" : "ascending") : null;
    const shown = valueOf(column, rows) ? element("button", { type: "button", class: "sort", onclick: sortBy(name) }, name) : name;
    return element("th", as("columnheader", { scope: "col", class: kind, key: name, "aria-sort": isSorted }), shown);
  });
  const cells = (textOf) => columns.map(([name, show, kind]) =>
    element("td", as("cell", { class: kind, key: name, "data-heading": isStacked ? name : null }), textOf(name, show)));
  const body = sorted(columns, rows, order).flatMap((row, at) => [
    element("tr", as("row", { class: note && "noted", key: key(row, at) }), ...cells((_, show) => show(row))),
    ...(note ? [element("tr", { key: `note of ${key(row, at)}` },
      element("td", { class: "note", colspan: columns.length }, note(row)))] : []),
  ]);
  const sums = total && rows.length > 1 ? element("tr", as("row", { class: "total", key: "total" }), ...cells((name) => total[name] ?? "")) : null;
  return element("table", as("table", { class: isStacked ? "stacked" : null }),
    element("caption", {}, element("span", {}, caption)),
    element("thead", as("rowgroup"), element("tr", as("row"), ...heads)),
    element("tbody", as("rowgroup"), ...body, sums));
}

// What sorts the rows by a column; null: nothing does.
function valueOf([, show, kind, of], rows) {
  if (rows.length < 2) return null;
  return of ?? (kind !== "number" && rows.every((row) => typeof show(row) === "string") ? show : null);
}

// Rows without a value come last, in either direction.
function sorted(columns, rows, order) {
  const column = columns.find(([name]) => name === order?.name);
  const of = column && valueOf(column, rows);
  if (!of) return rows;
  const isKnown = (row) => of(row) !== null && of(row) !== undefined;
  const compare = (one, other) => (typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true }));
  const known = rows.filter(isKnown).sort((one, other) => (order.isDown ? compare(of(other), of(one)) : compare(of(one), of(other))));
  return [...known, ...rows.filter((row) => !isKnown(row))];
}

// Up, down, and as the table came.
const sortBy = (name) => ({ currentTarget }) => {
  let body = currentTarget;
  while (!body.draw) body = body.parentNode;
  const { order } = body;
  body.order = order?.name !== name ? { name, isDown: false } : order.isDown ? null : { name, isDown: true };
  patch(body, body.draw(body.order));
};

export function badge(state) {
  return element("span", { class: `badge ${state}` }, state);
}

export function empty(...children) {
  return element("div", { class: "empty" }, ...children);
}

// An explanation of words that the reader can open: touch and keyboard do not reach a `title`. `update` takes pairs
// [word, meaning].
export function glossary(summary) {
  const list = element("dl", {});
  const body = element("details", { class: "glossary" }, element("summary", {}, summary), list);
  const update = (entries) => {
    body.hidden = !entries.length;
    patch(list, ...entries.flatMap(([word, text]) => [element("dt", { key: word }, word), element("dd", { key: `${word}: ` }, text)]));
  };
  return { body, update };
}

// Shown in place of a missing answer: the reason, and a button to ask `again`.
export const unanswered = (error, again) =>
  [element("p", { class: "quiet" }, error.message), element("button", { type: "button", onclick: again }, "try again")];
