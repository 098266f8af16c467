// The page: what is typed, what is chosen, and what is looked at again.

import { token } from "./api.js";
import { show } from "./detail.js";
import { find } from "./dom.js";
import { refresh } from "./heads.js";
import { JournalList } from "./list.js";
import { reset, toggle } from "./tail.js";

const PERIOD_MS = 3000;
const TYPING_MS = 200;

let showing = new AbortController();
let typing;

function fail(error) {
  if (error.name === "AbortError") return;
  find("problem").textContent = error.message;
  find("problem").hidden = false;
}

async function attempt(work) {
  try {
    await work();
    find("problem").hidden = true;
  } catch (error) {
    fail(error);
  }
}

const list = new JournalList(fail);
const filter = () => ({ text: find("text").value, selector: find("selector").value.trim() });

async function look(options) {
  await attempt(async () => {
    await list.load(filter(), options);
    await refresh(list.names);
    list.draw();
  });
}

async function choose({ focus = false } = {}) {
  showing.abort();
  showing = new AbortController();
  let name = "";
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch {
    // A mistyped address chooses nothing.
  }
  if (name === "journals") return;
  list.chosen = name;
  reset(name);
  list.draw();
  if (!name) {
    find("detail").hidden = true;
    document.title = "Journals · Gazette";
    return;
  }
  document.title = `${name} · Gazette`;
  await attempt(() => show(name, showing.signal));
  if (focus && !find("detail").hidden) find("detail").focus({ preventScroll: true });
}

async function again() {
  if (!document.hidden) {
    await look({ keep: true });
    if (list.chosen) await attempt(() => show(list.chosen, showing.signal));
  }
  setTimeout(again, PERIOD_MS);
}

find("filter").addEventListener("submit", (event) => event.preventDefault());
find("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(look, TYPING_MS);
});
find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(find("token").value.trim());
  find("token").value = "";
  find("token").placeholder = token.get() ? "in use" : "none";
  look().then(() => choose());
});
find("close").addEventListener("click", () => {
  history.replaceState(null, "", location.pathname);
  choose();
  find("journals").focus();
});
find("follow").addEventListener("click", () => attempt(toggle));
addEventListener("hashchange", () => choose({ focus: true }));

find("token").placeholder = token.get() ? "in use" : "none";
await look();
await choose();
setTimeout(again, PERIOD_MS);
