// The list: rows in sight only, fetched a page at a time.

import { ask } from "./api.js";
import { element, find, say } from "./dom.js";
import { count } from "./format.js";
import { COLUMNS, drawn, keyOf } from "./rows.js";

const ROW = 28;
const PAGE = 100;
const BEYOND = 8;

export class JournalList {
  #pages = new Map();
  #entries = 0;
  #filter = {};
  #asked = new AbortController();
  #fail;
  #current = 0;
  chosen = "";
  total = 0;

  constructor(fail) {
    this.#fail = fail;
    find("scroll").addEventListener("scroll", () => this.draw(), { passive: true });
    find("list").addEventListener("focusin", (event) => {
      const index = event.target.closest("tr")?.ariaRowIndex;
      if (index) this.#current = Number(index) - 2;
    });
    addEventListener("resize", () => this.draw());
  }

  // Journals and folders in sight.
  get names() {
    return this.#inSight().flatMap((index) => keyOf(this.#row(index)) || []);
  }

  async load(filter, { keep = false } = {}) {
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#filter = filter;
    const [first] = keep ? this.#inSight() : [0];
    const page = Math.floor((first ?? 0) / PAGE);
    const answer = await this.#page(page);
    this.#pages = new Map([[page, answer.rows]]);
    if (!keep) {
      this.#current = 0;
      find("scroll").scrollTop = 0;
    }
    this.draw();
    this.total = answer.total;
    say("status", `${count(answer.matched)} of ${count(answer.total)} journals`);
  }

  draw() {
    const indexes = this.#inSight();
    const begin = indexes[0] ?? 0;
    const end = begin + indexes.length;
    for (const index of [begin, end - 1]) this.#want(Math.floor(Math.max(index, 0) / PAGE));
    const current = Math.min(Math.max(this.#current, begin), Math.max(end - 1, 0));
    const focused = document.activeElement?.dataset?.key;
    const { chosen } = this;
    const { folder = "" } = this.#filter;
    const body = find("list").tBodies[0];
    body.replaceChildren(
      space(begin * ROW),
      ...indexes.map((index) =>
        drawn(this.#row(index), { index, chosen, folder, isCurrent: index === current }),
      ),
      space((this.#entries - end) * ROW),
    );
    find("list").setAttribute("aria-rowcount", String(this.#entries + 1));
    if (focused) this.#focus(focused);
  }

  // Move the focus by a number of rows, and into sight.
  move(by) {
    const to = Math.min(Math.max(this.#current + by, 0), this.#entries - 1);
    if (to < 0) return;
    this.#current = to;
    const scroll = find("scroll");
    const head = find("list").tHead.offsetHeight;
    const top = to * ROW;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    const bottom = top + ROW + head - scroll.clientHeight;
    if (bottom > scroll.scrollTop) scroll.scrollTop = bottom;
    this.draw();
    this.#focus(keyOf(this.#row(to)));
  }

  #focus(key) {
    for (const link of find("list").tBodies[0].querySelectorAll("a")) {
      if (link.dataset.key === key) link.focus({ preventScroll: true });
    }
  }

  #row(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  #inSight() {
    const { scrollTop, clientHeight } = find("scroll");
    const begin = Math.max(Math.floor(scrollTop / ROW) - BEYOND, 0);
    const end = Math.min(Math.ceil((scrollTop + clientHeight) / ROW) + BEYOND, this.#entries);
    return Array.from({ length: Math.max(end - begin, 0) }, (_, number) => begin + number);
  }

  #want(page) {
    if (this.#entries === 0 || this.#pages.has(page)) return;
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
    this.#entries = answer.entries;
    return answer;
  }
}

function space(height) {
  const cellOfSpace = element("td", { colSpan: COLUMNS });
  cellOfSpace.style.height = `${Math.max(height, 0)}px`;
  const row = element("tr", { className: "space", ariaHidden: "true" });
  row.append(cellOfSpace);
  return row;
}
