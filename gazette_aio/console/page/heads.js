// Write heads of the journals in sight, sums of them in folders, and their rates between two looks.

import { ask } from "./api.js";

const KEPT = 1000;
const RATES = 60;
const known = new Map();

export const headOf = (name) => known.get(name);

// Sums of another selector are sums of other journals.
export function forgetSums() {
  for (const name of known.keys()) if (name === "" || name.endsWith("/")) known.delete(name);
}

export async function refresh(names, selector) {
  if (names.length === 0) return;
  const heads = await ask("/api/heads", { body: { names, selector } });
  const now = performance.now();
  for (const { name, head, problem } of heads) {
    const before = known.get(name);
    let perSecond = 0;
    const rates = before?.rates ?? [];
    if (head && before?.head) {
      perSecond = (Number(BigInt(head) - BigInt(before.head)) * 1000) / (now - before.at);
      rates.push(Math.max(perSecond, 0));
      if (rates.length > RATES) rates.shift();
    }
    known.delete(name);
    known.set(name, { head, problem, at: now, perSecond, rates });
  }
  for (const name of known.keys()) {
    if (known.size <= KEPT) break;
    known.delete(name);
  }
}
