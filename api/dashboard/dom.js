// Builds elements. Text goes in as text: nothing a job is called can become markup.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Columns: [heading, row => text or element, kind], kind one of "", "number", "text"; `note` is told below its row.
export function table(caption, columns, rows, note = null) {
  const heads = columns.map(([name, , kind]) => element("th", { scope: "col", class: kind }, name));
  const body = rows.flatMap((row) => [
    element("tr", { class: note && "noted" }, ...columns.map(([, show, kind]) => element("td", { class: kind }, show(row)))),
    ...(note ? [element("tr", {}, element("td", { class: "note", colspan: columns.length }, note(row)))] : []),
  ]);
  return element("div", { class: "scroll" },
    element("table", {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...body)));
}

export function badge(state) {
  return element("span", { class: `badge ${state}` }, state);
}

export function empty(...children) {
  return element("div", { class: "empty" }, ...children);
}

export const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toString();

// A loss or a metric: to four decimals, or where those say too little or too much, to four digits.
export function loss(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 10)) return value.toFixed(4);
  return size >= 1e4 && size < 1e7 ? value.toFixed(0) : number(value, 4);
}

export const share = (value) => (value === null || value === undefined ? "–" : `${number(100 * value, 2)} %`);

// What is set besides the rate and the level: "momentum 0.95, batch size 64".
export function besides({ learning_rate, level, ...values }) {
  return Object.entries(values)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : value}`)
    .join(", ");
}

export const seconds = (value) => `${value.toFixed(1)} s`;

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let step = 0;
  for (; bytes >= 1000 && step < units.length - 1; step += 1) bytes /= 1000;
  return `${step ? bytes.toFixed(1) : bytes} ${units[step]}`;
}

export function age(moment) {
  const passed = (Date.now() - Date.parse(moment)) / 1000;
  for (const [span, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (passed >= span) return `${Math.floor(passed / span)} ${unit} ago`;
  }
  return "just now";
}
