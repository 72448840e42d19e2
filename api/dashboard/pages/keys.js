// API keys: their owners and rights. A secret is shown once, and appears in no address or list.

import * as api from "../api.js";
import { now } from "../clock.js";
import { question } from "../dialog.js";
import { element, empty, glossary, patch, table } from "../dom.js";
import { since } from "../times.js";

const ROLES = {
  viewer: "looks",
  submitter: "submits jobs, and changes its own",
  operator: "changes every job",
  admin: "makes keys and reads the audit log, too",
};
const ROTATE = "It gets another secret at once. Whoever uses the old one, and every page that was opened with it, is signed out.";
const REVOKE = "It ends for ever, and so does every page that was opened with it. Its jobs stay.";

export function keysPage(root, _, __, ask) {
  const tools = element("div", { class: "tools" });
  const issued = element("section", { class: "panel issued", role: "status", hidden: "" });
  const content = element("div", { class: "panel" }, empty("loading …"));
  const roles = glossary("what each role may do");
  roles.update(Object.entries(ROLES));
  root.replaceChildren(element("h1", {}, "Keys"), tools, issued, content, roles.body);
  document.title = "Keys – Wiretune";
  let me = null;

  async function refresh() {
    const found = await api.keys();
    me = await api.me();
    const canCreate = me.may.includes("create keys");
    const canCreateOwn = me.may.includes("create keys of their own"); // not here: such a key ends with the page's session
    const own = canCreateOwn ? "Yours. The command “wiretune keys create” makes others." : "Yours.";
    patch(tools, element("span", { class: "quiet" }, canCreate ? "Of everybody." : own),
      canCreate ? element("button", { type: "button", onclick: askToCreate }, "New key …") : null);
    patch(content, found.length ? keyTable(found) : empty("You have no key: you came with a token of your organization."));
  }

  const stateOf = ({ revoked_at, expires_at }) => {
    if (revoked_at) return "revoked";
    return expires_at && Date.parse(expires_at) <= now() ? "expired" : "valid";
  };

  function keyTable(found) {
    return table(`${found.length} ${found.length === 1 ? "key" : "keys"}`, [
      ["name", (key) => element("span", {}, key.name, key.id === me.key ? element("span", { class: "label" }, "this session's") : null), "name", ({ name }) => name],
      ["state", (key) => element("span", { class: `badge ${stateOf(key) === "valid" ? "succeeded" : "queued"}` }, stateOf(key)), ""],
      ["role", ({ role }) => role, ""],
      ["owner", ({ owner }) => owner, ""],
      ["project", ({ project }) => project, ""],
      ["used", ({ last_used_at }) => (last_used_at ? since(last_used_at) : "never"), "", ({ last_used_at }) => last_used_at],
      ["expires", ({ expires_at }) => (expires_at ? new Date(expires_at).toLocaleDateString(undefined, { dateStyle: "medium" }) : "never"), "", ({ expires_at }) => expires_at],
      ["created", (key) => element("span", {}, since(key.created_at), ` by ${key.created_by}`), "", (key) => key.created_at],
      ["id", ({ id }) => element("code", {}, id), ""],
      ["change", (key) => (stateOf(key) === "valid" ? actions(key) : ""), ""],
    ], found, { key: ({ id }) => id, isStacked: true });
  }

  // Users may revoke any key that they see: their own, and admins all.
  const actions = (key) => element("div", { class: "buttons" },
    element("button", { type: "button", key: "rotate", "aria-label": `rotate ${key.name}`, onclick: () => confirm(key, "rotate", ROTATE) }, "rotate"),
    element("button", { type: "button", key: "revoke", class: "cancel", "aria-label": `revoke ${key.name}`, onclick: () => confirm(key, "revoke", REVOKE) }, "revoke"));

  const confirm = (key, verb, text) => question({
    title: `${verb} “${key.name}”?`,
    content: [element("p", {}, text), key.id === me.key ? element("p", {}, "This page was opened with it: you sign in again afterwards.") : null].filter(Boolean),
    answers: [{ label: `${verb} the key`, kind: "cancel", act: async () => {
      const answer = await api.actOnKey(key.id, verb);
      if (verb === "rotate") showSecret(answer);
      await refresh().catch(ask); // which finds out whether the session is over
    } }],
  });

  function askToCreate() {
    const field = (name, label, properties = {}, tag = "input", ...options) => {
      const input = element(tag, { name, ...properties }, ...options);
      return element("label", {}, label, input);
    };
    const fields = [
      field("name", "name: what the key is for", { required: "", pattern: "[A-Za-z0-9][A-Za-z0-9._@:+\\-]{0,79}", autocomplete: "off" }),
      field("role", "role", {}, "select", ...Object.entries(ROLES).map(([role, text]) =>
        element("option", { value: role, selected: role === "submitter" ? "" : null }, `${role}: ${text}`))),
      field("owner", "owner: whose jobs are submitted with it; empty: as the name", { autocomplete: "off" }),
      field("project", "project: whose jobs it sees", { value: "default", required: "", autocomplete: "off" }),
      field("expires_at", "expires; empty: never", { type: "datetime-local" }),
    ];
    return question({
      title: "New key",
      content: fields,
      answers: [{ label: "create the key", act: async () => {
        const given = Object.fromEntries(fields.map((each) => each.querySelector("input, select")).map(({ name, value }) => [name, value.trim()]));
        const expires_at = given.expires_at ? new Date(given.expires_at).toISOString() : null;
        showSecret(await api.createKey({ ...given, owner: given.owner || null, expires_at }));
        await refresh().catch(ask);
      } }],
    });
  }

  function showSecret({ key, secret }) {
    const shown = element("input", { readonly: "", value: secret, "aria-label": "secret", class: "secret" });
    const copy = element("button", { type: "button", onclick: () => navigator.clipboard?.writeText(secret)
      .then(() => { copy.textContent = "copied"; }, () => shown.select()) ?? shown.select() }, "copy");
    const hide = () => {
      issued.hidden = true;
      issued.replaceChildren();
    };
    issued.replaceChildren(element("h2", {}, `Secret of “${key.name}”`),
      element("p", {}, "Copy it now: it is shown this once, and nobody can look it up."),
      element("div", { class: "tools" }, shown, copy, element("button", { type: "button", onclick: hide }, "I have it")));
    issued.hidden = false;
    setTimeout(() => shown.select(), 0); // once the question has closed
  }

  return { refresh, shows: () => false };
}
