// The API's reference, drawn from /openapi.json without anything from elsewhere.

import { element, table } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

function operation(path, method, given) {
  const parameters = (given.parameters ?? []).filter((each) => each.in !== "header" || each.name !== "authorization");
  const bodies = Object.entries(given.requestBody?.content ?? {});
  const answers = Object.entries(given.responses ?? {});
  return element("section", { class: "panel", id: given.operationId },
    element("h2", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
    element("p", {}, given.description ?? given.summary ?? ""),
    parameters.length ? table("Parameters", [
      ["name", (each) => element("code", {}, each.name), ""],
      ["in", (each) => each.in, ""],
      ["what", (each) => each.description ?? each.schema?.description ?? "", "text"],
    ], parameters) : null,
    bodies.length ? element("div", {}, element("p", {}, `Body: ${name(bodies[0][1].schema)}, as ${bodies.map(([kind]) => kind).join(" or ")}`),
      element("pre", { tabindex: "0" }, JSON.stringify(bodies[0][1].example, null, 2))) : null,
    table("Answers", [
      ["status", ([status]) => status, ""],
      ["what", ([, answer]) => answer.description, "text"],
      ["body", ([, answer]) => name(Object.values(answer.content ?? {})[0]?.schema), ""],
    ], answers));
}

function name(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  return schema.type === "array" ? `list of ${name(schema.items)}` : schema.title ?? schema.type ?? "";
}

const described = await (await fetch("/openapi.json")).json();
const sections = Object.entries(described.paths).flatMap(([path, methods]) =>
  METHODS.filter((method) => methods[method]).map((method) => operation(path, method, methods[method])));
document.getElementById("page").replaceChildren(
  element("h1", {}, `${described.info.title} ${described.info.version}: API`),
  element("p", {}, "Send ", element("code", {}, "Authorization: Bearer wt_…"), ". The whole description is in ",
    element("a", { href: "/openapi.json" }, "/openapi.json"), "."),
  element("div", { class: "panels" }, ...sections));
window.__ready = true;
