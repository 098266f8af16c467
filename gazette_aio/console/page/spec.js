// Spec of a journal: edited, reviewed, applied. What was reviewed is what is applied.

import { ask } from "./api.js";
import { element, find, say } from "./dom.js";

const TEMPLATE = `name: NAME
replication: 1
labels:
  - name: content-type
    value: application/x-ndjson
fragment:
  length: 1073741824
  compression_codec: GZIP
  stores:
    - file:///
  refresh_interval: 1m0s
  flush_interval: 10m0s
`;

let opened = { name: "", revision: "0", text: "" };
let reviewed = null;

const edit = () => ({
  name: opened.name || find("new-name").value.trim(),
  revision: opened.revision,
  text: find("yaml").value,
});

function withdraw() {
  reviewed = null;
  find("apply").disabled = true;
  find("differences").hidden = true;
}

function verdict(text, isBad = false) {
  find("verdict").className = isBad ? "bad" : "";
  say("verdict", text);
}

export const isChanged = () => find("yaml").value !== opened.text;

function open(spec, base) {
  opened = spec;
  find("yaml").value = spec.text;
  find("naming").hidden = spec.name !== "";
  say("base", base);
  withdraw();
  verdict("");
}

export async function load(name, signal) {
  const spec = await ask("/api/spec", { query: { name }, signal });
  open(spec, `of revision ${spec.revision}`);
}

export function begin(folder) {
  const name = folder || "";
  find("new-name").value = name;
  open({ name: "", revision: "0", text: TEMPLATE.replace("NAME", name) }, "of a new journal");
  find("new-name").focus();
}

export function leave() {
  open({ name: "", revision: "0", text: "" }, "");
}

export const of = () => opened.name;

function drawn({ path, old, new: then }) {
  const kind = old === null ? "added" : then === null ? "removed" : "changed";
  const sign = { added: "+", removed: "−", changed: "~" }[kind];
  return element(
    "tr",
    { className: kind },
    element("th", { scope: "row" }, `${sign} ${path}`),
    element("td", { textContent: old ?? "" }),
    element("td", { textContent: then ?? "" }),
  );
}

async function review() {
  withdraw();
  const asked = edit();
  try {
    const answer = await ask("/api/review", { body: asked });
    find("differences").tBodies[0].replaceChildren(...answer.fields.map(drawn));
    find("differences").hidden = answer.fields.length === 0;
    if (answer.conflict) {
      verdict(`This would be refused: ${answer.conflict}. Load it again.`, true);
    } else if (answer.action === "keep") {
      verdict("Nothing differs.");
    } else {
      const number = answer.fields.length;
      const fields = number === 1 ? "1 field differs" : `${number} fields differ`;
      verdict(answer.action === "create" ? "The journal would be created." : `${fields}.`);
      reviewed = asked;
      find("apply").disabled = false;
    }
  } catch (error) {
    verdict(error.message, true);
  }
}

async function apply(applied) {
  const asked = reviewed;
  if (asked === null) return;
  find("apply").disabled = true;
  try {
    const { revision } = await ask("/api/apply", { body: asked });
    withdraw();
    await applied(asked.name);
    verdict(`Applied at revision ${revision}.`);
  } catch (error) {
    withdraw();
    verdict(error.message, true);
  }
}

// `applied` is called with the name of a journal, `again` to load it anew.
export function listen({ applied, again }) {
  find("yaml").addEventListener("input", () => {
    withdraw();
    verdict("");
  });
  find("new-name").addEventListener("input", () => {
    const name = find("new-name").value.trim();
    // A function: a name isn't a pattern of replacements.
    find("yaml").value = find("yaml").value.replace(/^name:.*$/m, () => `name: ${name}`);
    withdraw();
  });
  find("review").addEventListener("click", review);
  find("apply").addEventListener("click", () => apply(applied));
  find("revert").addEventListener("click", again);
}
