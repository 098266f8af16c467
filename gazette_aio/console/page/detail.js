// Overview of one journal: its facts, its rate, its fragments by store, its labels.

import { ask } from "./api.js";
import { cell, element, find, pairs } from "./dom.js";
import { bytes, count, grouped, rate, time } from "./format.js";
import { headOf } from "./heads.js";
import { spark } from "./spark.js";

const RATES = 60;

export async function show(name, signal) {
  const detail = await ask("/api/journal", { query: { name }, signal });
  const { row } = detail;
  pairs(find("facts"), [
    ["Write head", grouped(detail.head)],
    ["In fragments", bytes(detail.covered)],
    ["Brokers", row.members.join(", ") || "none"],
    ["Replication", String(row.replication)],
    ["Fragments", `${bytes(detail.fragmentLength)}, ${detail.codec.toLowerCase()}`],
    ["Suspended", row.suspend.toLowerCase()],
    ["Content type", detail.contentType || "none"],
    ["Revision", detail.revision],
  ]);
  find("stores").tBodies[0].replaceChildren(
    ...detail.stores.map((store) =>
      element(
        "tr",
        {},
        cell(store.store || "not stored yet"),
        cell(count(store.fragments), "number"),
        cell(bytes(store.contentBytes), "number"),
        cell(grouped(store.begin), "number"),
        cell(grouped(store.end), "number"),
        cell(time(store.newest)),
      ),
    ),
  );
  pairs(find("labels"), detail.labels.length ? detail.labels : [["none", ""]]);
  return detail;
}

export function showRate(name) {
  const head = headOf(name);
  const rates = head?.rates ?? [];
  const now = rate(head?.perSecond ?? 0);
  const most = rate(Math.max(...rates, 0));
  const drawing = rates.length > 4 ? [spark(rates, RATES, `Rate of the last minutes: ${now} now, at most ${most}`)] : [];
  find("rate").replaceChildren(
    ...drawing,
    element("span", { className: "number", textContent: `${now} · most ${most}` }),
  );
}
