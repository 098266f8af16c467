// The list of journals: rows in sight only, fetched a page at a time.

import { ask } from "./api.js";
import { cell, element, find } from "./dom.js";
import { grouped, rate } from "./format.js";
import { headOf } from "./heads.js";

const ROW = 34;
const PAGE = 100;
const BEYOND = 8;

export class JournalList {
  #pages = new Map();
  #matched = 0;
  #filter = {};
  #asked = new AbortController();
  #fail;
  chosen = "";

  constructor(fail) {
    this.#fail = fail;
    find("scroll").addEventListener("scroll", () => this.draw(), { passive: true });
    addEventListener("resize", () => this.draw());
  }

  get names() {
    return this.#inSight().flatMap((index) => this.#row(index)?.name ?? []);
  }

  async load(filter, { keep = false } = {}) {
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#filter = filter;
    if (!keep) find("scroll").scrollTop = 0;
    const [first] = keep ? this.#inSight() : [0];
    const page = Math.floor((first ?? 0) / PAGE);
    const answer = await this.#page(page);
    this.#pages = new Map([[page, answer.rows]]);
    this.draw();
    const status = `${answer.matched.toLocaleString("en")} of ${answer.total.toLocaleString("en")} journals`;
    if (find("status").textContent !== status) find("status").textContent = status;
  }

  draw() {
    const indexes = this.#inSight();
    const begin = indexes[0] ?? 0;
    const end = begin + indexes.length;
    for (const index of [begin, end - 1]) this.#want(Math.floor(Math.max(index, 0) / PAGE));
    const focused = document.activeElement?.dataset?.journal;
    const body = find("list").tBodies[0];
    body.replaceChildren(
      space(begin * ROW),
      ...indexes.map((index) => this.#drawn(index)),
      space((this.#matched - end) * ROW),
    );
    find("list").setAttribute("aria-rowcount", String(this.#matched + 1));
    if (focused) {
      for (const link of body.querySelectorAll("a")) {
        if (link.dataset.journal === focused) link.focus({ preventScroll: true });
      }
    }
  }

  #drawn(index) {
    const row = this.#row(index);
    const drawn = element("tr", { ariaRowIndex: String(index + 2) });
    if (!row) {
      drawn.append(element("td", { colSpan: 5, textContent: "…" }));
      return drawn;
    }
    const head = headOf(row.name);
    const link = element("a", { textContent: row.name, href: `#${encodeURIComponent(row.name)}` });
    link.dataset.journal = row.name;
    if (row.name === this.chosen) {
      drawn.className = "chosen";
      link.setAttribute("aria-current", "true");
    }
    const state = row.suspend === "NONE" ? "" : ` (suspended: ${row.suspend.toLowerCase()})`;
    drawn.append(
      element("td", { title: row.name }, link),
      cell(head?.head ? grouped(head.head) : (head?.problem ?? ""), "number"),
      cell(head?.head ? rate(head.perSecond) : "", "number"),
      cell((row.members.join(", ") || "none") + state),
      cell(row.stores.join(", ") || "none"),
    );
    return drawn;
  }

  #row(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  #inSight() {
    const { scrollTop, clientHeight } = find("scroll");
    const begin = Math.max(Math.floor(scrollTop / ROW) - BEYOND, 0);
    const end = Math.min(Math.ceil((scrollTop + clientHeight) / ROW) + BEYOND, this.#matched);
    return Array.from({ length: Math.max(end - begin, 0) }, (_, number) => begin + number);
  }

  #want(page) {
    if (this.#matched === 0 || this.#pages.has(page)) return;
    this.#pages.set(page, []);
    this.#page(page).then(
      (answer) => {
        this.#pages.set(page, answer.rows);
        this.draw();
      },
      (error) => {
        this.#pages.delete(page);
        this.#fail(error);
      },
    );
  }

  async #page(page) {
    const query = { ...this.#filter, offset: page * PAGE, limit: PAGE };
    const answer = await ask("/api/journals", { query, signal: this.#asked.signal });
    this.#matched = answer.matched;
    return answer;
  }
}

function space(height) {
  const cellOfSpace = element("td", { colSpan: 5 });
  cellOfSpace.style.height = `${Math.max(height, 0)}px`;
  const row = element("tr", { className: "space", ariaHidden: "true" });
  row.append(cellOfSpace);
  return row;
}
