// The only file that draws: it turns a figure into a chart, with the same data as a table next to it.

import { element, patch, table, unanswered, whenKept } from "../dom.js";
import { fileName, saveRows } from "../files.js";
import { grouped, ticksOf } from "./look.js";

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
const KEPT = "keep"; // the zoom, from one drawing to the next
const MOST_ENTRIES = 24;
const MOST_ROWS = 500; // of a data table, which is written again with each change

let library = null;

// Loaded once for all charts; after a failure, the next chart tries again.
function load() {
  library ??= new Promise((resolve, reject) => {
    const source = document.querySelector('meta[name="plotly"]').content;
    document.head.append(element("script", { src: source, id: "plotly" }));
    const script = document.getElementById("plotly");
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      script.remove();
      library = null;
      reject(new Error("The chart library did not load."));
    };
  });
  return library;
}

// Charts that are visible, or nearly so; the others are drawn when they get there.
const inSight = new Map(); // chart => its `paint`
const painters = new WeakMap(); // chart => its `paint`, and what makes a picture of it
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) inSight.set(target, painters.get(target).paint);
    else inSight.delete(target);
    inSight.get(target)?.();
  }
}, { rootMargin: "300px" });
const darkness = matchMedia("(prefers-color-scheme: dark)");
let isPaper = false; // which is light on every screen
const isDark = () => darkness.matches && !isPaper;
const paintAll = () => inSight.forEach((paint) => paint());
darkness.addEventListener("change", paintAll);
const isTouched = matchMedia("(pointer: coarse)").matches; // a finger that zooms a chart could not scroll the page

// A panel with a chart and its table. `draw` takes a function from a theme to a figure, and keeps the reader's zoom.
// `close` releases the chart. The `heading` changes if the chart can show something else. `tools` are above the chart;
// `zoomed` gets the range of the x axis (null: all of it) when the reader changes it.
export function panel(title, kind = "", { tools = null, zoomed = null } = {}) {
  const chart = element("div", { class: "chart", role: "img", "aria-label": title });
  const failed = element("div", {});
  const data = element("div", { class: "data", hidden: "" });
  const toggle = element("button", { type: "button", "aria-expanded": "false", "aria-label": `data table: ${title}`, onclick: flip }, "data table");
  const zoom = isTouched ? element("button", { type: "button", "aria-pressed": "false", "aria-label": `zoom: ${title}`, onclick: flipZoom }, "zoom") : null;
  const heading = element("h2", {}, title);
  const exports = [["PNG", () => download("png")], ["SVG", () => download("svg")], ["CSV", downloadRows]]
    .map(([label, onclick]) => element("button", { type: "button", onclick }, label));
  const menu = saveMenu(exports);
  const body = element("section", { class: `panel ${kind}`, id: kind === "bare" ? null : fileName(title) },
    element("div", { class: "panel-head" }, heading, element("div", { class: "panel-tools" }, zoom, toggle, menu)), tools ?? "", failed, chart, data);
  const figure = whenKept((given, inTheme) => given(inTheme));
  let make = null;
  let drawn = {};
  let called = title;
  let part = null; // of the x axis, where other charts follow its zoom; null: all
  let isShown = false; // by the library, which goes on from it
  let isZoomable = !isTouched;

  function flip() {
    data.hidden = !data.hidden;
    toggle.setAttribute("aria-expanded", String(!data.hidden));
    if (make) tell(figure(make, theme()));
  }

  function flipZoom() {
    isZoomable = !isZoomable;
    zoom.setAttribute("aria-pressed", String(isZoomable));
    if (isShown) window.Plotly.relayout(chart, { dragmode: dragmode() });
  }

  const dragmode = () => (isZoomable ? "zoom" : false);

  function tell({ label, columns, rows }) {
    chart.setAttribute("aria-label", `${heading.textContent}: ${label}`);
    if (data.hidden) return;
    const newest = newestOf(rows);
    const whole = newest.length === rows.length ? "" : `; the newest ${newest.length} of ${rows.length} rows, of which the CSV has all`;
    patch(data, table(`${label}${whole}`, columns, newest));
  }

  // `about` distinguishes this panel's button from others with the same title.
  async function draw(given, about = title) {
    [make, called] = [given, about];
    toggle.setAttribute("aria-label", `data table: ${about}`);
    zoom?.setAttribute("aria-label", `zoom: ${about}`);
    menu.firstChild.setAttribute("aria-label", `save: ${about}`);
    tell(figure(make, theme()));
    if (inSight.has(chart)) await paint();
  }

  async function paint() {
    if (!make || (drawn.make === make && drawn.dark === isDark())) return;
    drawn = { make, dark: isDark() };
    const { traces, layout } = figure(make, theme());
    chart.style.height = layout.height ? `${layout.height}px` : "";
    try {
      const plotly = await load();
      await plotly.react(chart, traces, { ...themed(inPart(layout), ticksInSight(chart, layout)), ...legend(traces), dragmode: dragmode() }, CONFIG);
      if (!isShown) chart.on("plotly_relayout", hear);
      isShown = true;
      patch(failed);
    } catch (error) {
      drawn = {};
      patch(failed, ...unanswered(error, paintAll));
    }
  }

  // A zoomed range has ticks of its own.
  function hear(change) {
    const isMoved = (name) => Object.keys(change).some((key) => key.startsWith(`${name}.range`) || key.startsWith(`${name}.autorange`));
    const moved = Object.entries(ticksInSight(chart, figure(make, theme()).layout)).filter(([name]) => isMoved(name));
    const fields = moved.flatMap(([name, ticks]) => Object.entries(ticks).map(([field, value]) => [`${name}.${field}`, value]));
    if (fields.length) window.Plotly.relayout(chart, Object.fromEntries(fields));
    if (zoomed) hearZoom(change);
  }

  function hearZoom(change) {
    if (change["xaxis.autorange"]) zoomed(part = null);
    else if ("xaxis.range[0]" in change) zoomed(part = [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  }

  // Follows another chart's zoom; one that is not drawn yet, once it is.
  function zoomTo(range) {
    part = range;
    if (isShown) window.Plotly.relayout(chart, range ? { "xaxis.range": range } : { "xaxis.autorange": true });
  }

  const inPart = (layout) => (part ? { ...layout, xaxis: { ...layout.xaxis, range: part, autorange: false } } : layout);

  // As zoomed, on the page's background colour.
  async function picture() {
    await paint();
    const layout = { ...chart.layout, paper_bgcolor: theme().paper, autosize: false };
    return { data: chart.data, layout, config: CONFIG };
  }

  const frame = (format) => ({ format, width: 1000, height: figure(make, theme()).layout.height ?? 500, scale: format === "png" ? 2 : 1 });
  const nameOf = () => fileName(called);

  async function download(format) {
    if (!make) return;
    await (await load()).downloadImage(await picture(), { ...frame(format), filename: nameOf() });
  }

  function downloadRows() {
    if (make) saveRows(`${nameOf()}.csv`, figure(make, theme()).rows);
  }

  async function drawnAs(format) {
    return { name: nameOf(), url: await (await load()).toImage(await picture(), frame(format)) };
  }

  // The library keeps drawings and their listeners until it is told to drop them.
  function close() {
    sight.unobserve(chart);
    inSight.delete(chart);
    if (drawn.make || isShown) window.Plotly?.purge(chart);
  }

  painters.set(chart, { paint, drawnAs, isEmpty: () => make === null });
  sight.observe(chart);
  return { body, heading, draw, close, zoomTo };
}

// The last rows of each trial: as many as fit into a data table, and at least one.
function newestOf(rows) {
  if (rows.length <= MOST_ROWS) return rows;
  const trials = [...grouped(rows, (row) => row.trial_id ?? row.label).values()];
  const each = Math.max(1, Math.floor(MOST_ROWS / trials.length));
  return trials.flatMap((own) => own.slice(-each));
}

// A menu of files. It closes after a choice, on Escape, and when it loses the focus.
export function saveMenu(buttons) {
  const menu = element("details", { class: "menu" }, element("summary", {}, "save"), element("div", {}, ...buttons));
  menu.addEventListener("click", (event) => event.target.closest("button") && (menu.open = false));
  menu.addEventListener("keydown", (event) => event.key === "Escape" && (menu.open = false));
  menu.addEventListener("focusout", ({ relatedTarget: next }) => next && !menu.contains(next) && (menu.open = false)); // Safari's clicks give no focus
  return menu;
}

const visible = () => [...document.querySelectorAll(".chart")].filter((chart) => !chart.closest("[hidden]") && !painters.get(chart).isEmpty());

export const paintVisible = () => Promise.all(visible().map((chart) => painters.get(chart).paint()));

// Paints in light colours while the page is printed, and has drawings fit the width of the paper.
export async function toPaper(isPrinted) {
  isPaper = isPrinted;
  document.documentElement.style.colorScheme = isPrinted ? "light" : "";
  if (isPrinted) await paintVisible();
  for (const drawing of document.querySelectorAll(".chart .main-svg")) {
    if (isPrinted) drawing.setAttribute("viewBox", `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`);
    else drawing.removeAttribute("viewBox"); // the library does not know of it
  }
  if (!isPrinted) paintAll();
}

// Every visible chart of the page as {name, url}, one after the other, in order.
export async function pictures(format) {
  const found = [];
  for (const chart of visible()) found.push(await painters.get(chart).drawnAs(format));
  return found;
}

const themes = new Map(); // by whether it is dark: to ask for a style has the browser compute all of them

function theme() {
  if (!themes.has(isDark())) {
    const style = getComputedStyle(document.body);
    const panels = getComputedStyle(document.querySelector("header"));
    themes.set(isDark(), { ink: style.color, paper: panels.backgroundColor, line: panels.borderBottomColor, family: style.fontFamily });
  }
  return themes.get(isDark());
}

// The `ticks` of those axes whose ticks differ from the figure's.
function themed(layout, ticks) {
  const { ink, line, family } = theme();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const axes = Object.fromEntries(
    Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(([name, { write: _, ...own }]) => [name, { ...axis, ...own, ...ticks[name] }]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, family, size: 12 },
    margin: { l: 60, r: 15, t: 10, b: 45 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, // above: below is the axis, however tall
    uirevision: KEPT, // a zoom stays while points come; whoever changes what an axis counts gives its own
    ...layout,
    ...axes,
    shapes: [...(layout.shapes ?? []), ...Object.entries(axes).flatMap(spanned)],
  };
}

// None where its entries would take the chart's place: hovering names each line.
export function legend(traces) {
  const entries = new Set(traces.filter((trace) => trace.showlegend !== false).map((trace) => trace.legendgroup ?? trace.name));
  return entries.size > MOST_ENTRIES ? { showlegend: false } : {};
}

// Ticks of every logarithmic axis: after a zoom that the chart keeps, the figure's own may be out of sight.
function ticksInSight({ _fullLayout: shown }, layout) {
  const isKept = shown?.uirevision === (layout.uirevision ?? KEPT);
  return Object.fromEntries(Object.entries(layout).filter(([, axis]) => axis?.write).map(([name, { write, tickvals, ticktext }]) => {
    const { type, autorange, range } = (isKept && shown[name]) || {};
    return [name, type === "log" && autorange === false ? ticksOf(10 ** range[0], 10 ** range[1], write) : { tickvals, ticktext }];
  }));
}

// On a logarithmic axis plotly ignores values below 1 in `include`, so an invisible line extends the range.
function spanned([name, { type, autorangeoptions }]) {
  if (type !== "log" || !autorangeoptions) return [];
  const [own, other] = name.startsWith("x") ? ["x", "y"] : ["y", "x"];
  const [low, high] = autorangeoptions.include;
  return [{ type: "line", line: { width: 0 }, opacity: 0, [`${own}ref`]: name.replace("axis", ""), [`${own}0`]: low, [`${own}1`]: high,
    [`${other}ref`]: "paper", [`${other}0`]: 0, [`${other}1`]: 0 }];
}
