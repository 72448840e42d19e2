// A new job: as a form made from the job's JSON Schema, or as text. The service checks it during typing.

import * as api from "../../api.js";
import { question, reason } from "../../dialog.js";
import { differences, valueText } from "../../differences.js";
import { element, empty, patch } from "../../dom.js";
import { paced } from "../../live/live.js";
import { yaml } from "../../yaml.js";
import { fieldsFor, placeOf, showProblems } from "./fields.js";
import { predictionPanel } from "./prediction.js";
import { reader } from "./schema.js";

const CHECK_EVERY_MS = 800;
// The sections of the form and their fields; a field in none of them goes into the last.
const SECTIONS = {
  "What it is": ["name", "labels", "webhook"],
  "Model and data": ["workload", "partition", "precision", "accumulate", "clip"],
  "Budget and objective": ["budget", "limits", "objective", "checkpoint"],
  "Workers and link": ["workers", "link", "lanes"],
  "What workers send": ["exchange", "sync"],
  "Training": ["optimizer", "activations", "blocks"],
  "Controller": ["controller"],
  "Arms and seeds": ["arms", "seeds"],
  "More": [],
};
const OPEN = ["What it is", "Model and data", "Budget and objective"];

export const submitPage = (root) => jobForm(root, null);
export const clonePage = (root, id, query) => jobForm(root, id, query.get("trial"));

// With `trial`, of what this sample or arm of `source` trains.
function jobForm(root, source, trial = null) {
  const title = source ? "Clone a job" : "New job";
  root.replaceChildren(element("h1", {}, title), element("div", { class: "panel" }, empty("loading …")));
  document.title = `${title} – Wiretune`;
  let isThere = false; // what somebody has written is not drawn again

  async function refresh() {
    if (isThere) return;
    const [me, document, job] = await Promise.all([api.me(), api.description(), source && api.job(source)]).catch((error) => {
      if (error.status !== 404) throw error;
      return [null];
    });
    if (!me) return void root.replaceChildren(element("h1", {}, "No such job"), element("div", { class: "panel" }, empty("There is no such job that you may see. ", element("a", { href: "/" }, "All jobs"))));
    if (!me.may.includes("create a job")) return void root.replaceChildren(element("h1", {}, title),
      element("div", { class: "panel" }, empty(`Your role, ${me.role}, submits no jobs.`)));
    const spec = trial ? await api.ofTrial(source, trial) : job && copied(job, me);
    isThere = true;
    editor(root, document, job && { ...job, trial }, spec);
  }

  return { refresh, shows: () => false };
}

// As the service copies a job: its webhook tells nobody but its owner.
const copied = ({ owner, project, spec }, me) => (owner === me.name && project === me.project ? spec : { ...spec, webhook: null });

function editor(root, document, source, spec) {
  const schema = document.components.schemas.JobSpec;
  const read = reader(document);
  const field = fieldsFor(read);
  let value = source ? read.trimmed(spec, schema) : {};
  let isText = false;
  let isRead = true; // what the text tab has is in `value`
  let version = 0;
  let sent = { text: null };
  let isWritten = false; // something that is nowhere else
  let begun = ""; // the example that the form began with

  const form = element("div", { id: "as-form", role: "group", "aria-label": "Form" });
  const text = element("textarea", { rows: 26, spellcheck: "false", "aria-label": "The job as YAML", oninput: () => {
    isRead = false;
    write();
  } });
  const asText = element("div", { id: "as-text", hidden: "" }, text);
  const verdict = element("div", { class: "verdict panel", role: "status" });
  const way = (label, toText) => element("button", { type: "button", "aria-pressed": String(toText === isText), onclick: () => turn(toText) }, label);
  const ways = element("div", { class: "tabs", role: "group", "aria-label": "Write it as" }, way("Form", false), way("YAML", true));
  const submit = element("button", { type: "button", class: "primary", onclick: send }, "Submit the job");
  const examples = schema.examples ?? [];
  const begin = element("label", { class: "begin" }, "Begin with ", element("select", { onchange: beginWith }, element("option", { value: "" }, "an empty form"), ...examples.map((each, at) => element("option", { value: at }, each.name))));
  const prediction = predictionPanel({ schema: document.components.schemas.PredictionRequest, field, source, write: rewrite,
    currentJob: async () => (await api.validate(written())).spec });
  root.replaceChildren(
    element("h1", {}, source ? `Clone ${source.trial ? `${source.trial} of ` : ""}“${source.name}”` : "New job"),
    element("p", { class: "quiet" }, source ? "A new job: this one with changes." : "What is left empty has its default. Only the workload and a budget are required."),
    element("div", { class: "tools" }, ways, source ? null : begin),
    element("div", { class: "submit" }, element("div", {}, form, asText, prediction), element("div", { class: "side" }, verdict, element("div", { class: "buttons" }, submit))));

  const check = paced(look, (error) => {
    if (error instanceof api.NeedsKey) return false;
    patch(verdict, element("p", { class: "refused" }, `The job was not checked: ${error.message} Trying again.`));
    return true;
  }, { gapMs: CHECK_EVERY_MS });
  draw();
  addEventListener("beforeunload", (event) => isWritten && root.contains(form) && event.preventDefault());
  if (source) touch();
  else patch(verdict, element("p", {}, "Choose a workload and give it a budget: the service checks the job while you write."));

  // Keeps open sections open.
  function draw() {
    const open = form.children.length ? [...form.querySelectorAll("details.section[open] > summary")].map((each) => each.textContent) : OPEN;
    const placed = new Set(Object.values(SECTIONS).flat());
    const others = Object.keys(schema.properties).filter((name) => !placed.has(name));
    form.replaceChildren(...Object.entries({ ...SECTIONS, More: others }).filter(([, names]) => names.length).map(([label, names]) =>
      element("details", { class: "panel section", open: open.includes(label) ? "" : null }, element("summary", {}, element("h2", {}, label)),
        ...names.filter((name) => schema.properties[name]).map(top))));
  }

  function top(name) {
    const set = (given) => {
      const { [name]: _, ...rest } = value;
      value = given === undefined ? rest : { ...value, [name]: given };
      write();
    };
    return field(name, schema.properties[name], `/${name}`, () => value[name], set, schema.required.includes(name));
  }

  function load(given) {
    value = read.trimmed(given, schema);
    text.value = yaml(value);
    isRead = true;
    draw();
    touch();
  }

  async function beginWith({ currentTarget: select }) {
    const chosen = select.value;
    select.value = begun;
    const act = () => {
      begun = select.value = chosen;
      load(examples[chosen] ?? {});
      isWritten = false;
    };
    if (!isWritten) return act();
    await question({ title: "Replace what you have written?", content: [], answers: [{ label: "replace it", act }] });
  }

  function write() {
    isWritten = true;
    touch();
  }

  function rewrite(given) {
    load(given);
    isWritten = true;
    placeOf(form, "/exchange").closest("details").open = true;
  }

  const written = () => (isText ? text.value : JSON.stringify(value));

  function touch() {
    version += 1;
    check();
  }

  // Both tabs show the same job; the form waits until the service can read the text.
  async function turn(toText) {
    if (toText === isText) return;
    if (toText) text.value = yaml(value);
    else if (!isRead) {
      await look();
      if (!isRead) return void verdict.prepend(element("p", { class: "refused" }, "The form cannot show this text: mend it first."));
    }
    isText = toText;
    if (toText) isRead = true;
    else draw();
    form.hidden = isText;
    asText.hidden = !isText;
    for (const [at, each] of [...ways.children].entries()) each.setAttribute("aria-pressed", String(isText === Boolean(at)));
    touch();
  }

  async function look() {
    const of = version;
    try {
      const found = await api.validate(written());
      if (of !== version) return;
      if (isText) {
        value = read.trimmed(found.spec, schema);
        isRead = true;
      }
      showProblems(form, []);
      patch(verdict, ...agreed(found, source));
    } catch (error) {
      if (isOfService(error)) throw error;
      if (of === version) refuse(error);
    }
  }

  function refuse(error) {
    const problems = error.errors.length ? error.errors : [{ pointer: "", message: error.message }];
    const rest = showProblems(form, problems);
    patch(verdict, element("h2", {}, problems.length === 1 ? "1 problem" : `${problems.length} problems`),
      element("ul", { class: "plain" }, ...(isText ? problems : problems.map((each) => ({ ...each, isElsewhere: rest.includes(each) }))).map(line)));
  }

  function line({ pointer, message, isElsewhere }, at) {
    const place = element("code", {}, pointer || "/");
    const go = ({ currentTarget }) => placeOf(form, currentTarget.dataset.to)?.querySelector("input, select, textarea, button")?.focus();
    return element("li", { key: at, class: "problem-line" }, isText || isElsewhere ? place
      : element("button", { type: "button", class: "link", "data-to": pointer, onclick: go }, place), ` ${message}`);
  }

  // One idempotency key per text: if an answer is lost, the repeated request queues no second job.
  async function send() {
    const now = written();
    if (sent.text !== now) sent = { text: now, key: api.newKey() };
    submit.disabled = true;
    try {
      const made = await api.submit(now, sent.key, source?.id);
      isWritten = false;
      location.assign(`/?job=${encodeURIComponent(made.id)}`);
    } catch (error) {
      if (error.errors?.length) refuse(error);
      else patch(verdict, element("p", { class: "refused" }, reason(error)));
    } finally {
      submit.disabled = false;
    }
  }
}

// Whether the same request may succeed later: no answer, or a slow, busy or broken service.
const isOfService = (error) => !(error instanceof api.Refused) || error.status >= 500 || [408, 429].includes(error.status);

function agreed({ spec, num_trials, notes, advice }, source) {
  const changes = source ? differences(source.spec, spec) : [];
  return [
    element("h2", {}, "The service takes this job"),
    num_trials === 1 ? element("p", {}, "1 trial.") : null, // of more the notes tell
    ...notes.map((note) => element("p", { class: "quiet" }, note)),
    advice.length ? element("h3", {}, "Advice") : null,
    advice.length ? element("ul", { class: "advice" }, ...advice.map((each) => element("li", {}, each))) : null,
    source ? element("h3", {}, changes.length ? "What differs" : "Nothing differs.") : null,
    changes.length ? element("ul", { class: "plain differing" }, ...changes.map(({ pointer, before, after }) =>
      element("li", {}, element("code", {}, pointer), `: ${valueText(before)} → ${valueText(after)}`))) : null,
  ];
}
