// Sums of a folder, or of all journals: sizes, rates, brokers, health.

import { ask } from "./api.js";
import { cell, element, find } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { headOf } from "./heads.js";
import { address } from "./path.js";
import { healthOf } from "./rows.js";
import { spark } from "./spark.js";

const RATES = 60;

let asked;

export async function show(query) {
  asked = query;
  const sums = await ask("/api/summary", { query });
  if (asked !== query) return; // Of a folder that isn't shown any more.
  find("sum-journals").textContent = count(sums.journals);
  find("sum-health").replaceChildren(...healthOf(sums.health));
  find("sum-brokers").textContent = count(sums.brokers.length);
  find("brokers").tBodies[0].replaceChildren(
    ...sums.brokers.map(([name, primary, all]) =>
      element("tr", {}, cell(name), cell(count(primary), "number"), cell(count(all), "number")),
    ),
  );
  find("troubled").hidden = sums.troubled.length === 0;
  find("troubled").lastElementChild.replaceChildren(
    ...sums.troubled.map((name) => element("li", {}, element("a", { href: address(name), textContent: name }))),
  );
}

export function showRate(folder) {
  const sum = headOf(folder);
  find("sum-written").textContent = sum?.head ? bytes(sum.head) : "–";
  find("sum-written").title = sum?.problem ?? "";
  const rates = sum?.rates ?? [];
  const now = rate(sum?.perSecond ?? 0);
  const drawing = rates.length > 4 ? [spark(rates, RATES, `Rate of the last minutes: ${now} now`)] : [];
  find("sum-rate").replaceChildren(now, ...drawing);
}
