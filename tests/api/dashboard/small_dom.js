// As much of a browser as the page's modules need where node has none: elements without a look, and a service that a
// test plays. `seeAll()` brings into sight all that waits for it and is not hidden.

class Node {
  static TEXT_NODE = 3;
  childNodes = [];
  parentNode = null;

  get children() { return this.childNodes.filter(({ nodeType }) => nodeType === 1); }
  get firstChild() { return this.childNodes[0] ?? null; }
  get nextSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) + 1] ?? null; }
  get isConnected() { return this === document.body || Boolean(this.parentNode?.isConnected); }
  get textContent() { return this.childNodes.map((each) => each.textContent).join(""); }
  set textContent(text) { this.replaceChildren(...(text === "" ? [] : [text])); }

  remove() {
    this.parentNode?.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
    this.parentNode = null;
  }

  insertBefore(given, next) {
    given.remove();
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, given);
    given.parentNode = this;
  }

  append(...given) {
    for (const each of given) this.insertBefore(typeof each === "string" ? document.createTextNode(each) : each, null);
  }

  contains(node) { return node === this || this.childNodes.some((each) => each.contains(node)); }
  addEventListener() {}
  on() {}
  showModal() {}
  close() {}

  replaceChildren(...given) {
    for (const each of [...this.childNodes]) each.remove();
    this.append(...given);
  }
}

class Text extends Node {
  nodeType = 3;
  nodeName = "#text";
  constructor(data) { super(); this.data = data; }
  get textContent() { return this.data; }
}

class Element extends Node {
  nodeType = 1;
  #attributes = new Map();
  classList = { toggle() {} };
  style = {};
  constructor(tag) { super(); this.nodeName = tag.toUpperCase(); }
  get attributes() { return [...this.#attributes].map(([name, value]) => ({ name, value })); }
  get options() { return this.childNodes; }
  get hidden() { return this.hasAttribute("hidden"); }
  set hidden(isHidden) { isHidden ? this.setAttribute("hidden", "") : this.removeAttribute("hidden"); }
  get checked() { return this.hasAttribute("checked"); }
  // Of a select: its first option, until another one is chosen.
  get value() { return this.given ?? this.getAttribute("value") ?? this.options[0]?.value ?? ""; }
  set value(text) { this.given = text; }
  getAttribute(name) { return this.#attributes.get(name) ?? null; }
  setAttribute(name, value) { this.#attributes.set(name, String(value)); }
  hasAttribute(name) { return this.#attributes.has(name); }
  removeAttribute(name) { this.#attributes.delete(name); }
  // By "#id", "[name=value]" or a tag.
  querySelector(asked) {
    const id = asked.startsWith("#") ? ["", "id", asked.slice(1)] : [];
    const [, name, value] = /^\[(.+)=(.+)\]$/.exec(asked) ?? id;
    const isIt = (each) => (name ? each.getAttribute?.(name) === value : each.nodeName === asked.toUpperCase());
    return all(this).find(isIt) ?? null;
  }

  querySelectorAll() { return []; }
  focus() {}
}

const all = (node) => node.childNodes.flatMap((each) => [each, ...all(each)]);
const isHidden = (node) => Boolean(node) && (node.hidden || isHidden(node.parentNode));
const watched = [];
const loaded = { set onload(go) { queueMicrotask(go); } }; // the chart library's script

globalThis.Node = Node;
globalThis.DocumentFragment = class extends Element { constructor() { super("fragment"); } };
globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  createTextNode: (text) => new Text(text),
  createComment: () => new Element("comment"),
  addEventListener() {},
  getElementById: (id) => (id === "plotly" ? loaded : document.body.querySelector(`#${id}`)),
  querySelector: () => document.body,
  querySelectorAll: () => [],
};
document.body = new Element("body");
document.head = new Element("head");
globalThis.window = globalThis;
globalThis.Plotly = { react() {} };
globalThis.getComputedStyle = () => ({});
globalThis.IntersectionObserver = class {
  constructor(tell) { this.tell = tell; }
  observe(target) { watched.push(() => this.tell([{ target, isIntersecting: !isHidden(target) }])); }
};
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.location = new URL("http://page.invalid/");
globalThis.addEventListener = () => {};
globalThis.history = { pushState() {}, replaceState() {} };
globalThis.setInterval = () => {};

export const seeAll = () => watched.forEach((look) => look());

const turn = () => new Promise((resolve) => setTimeout(resolve, 0));

// Resolves once all that can go on has gone on.
export const settled = () => turn().then(turn);
export const refusal = (status, detail) => Response.json({ detail }, { status });

// A service that answers when, and what, the test says: `asked` are [address, function that answers].
export function heldService() {
  const asked = [];
  globalThis.fetch = (path) => new Promise((resolve) => asked.push([path, resolve]));
  return asked;
}
