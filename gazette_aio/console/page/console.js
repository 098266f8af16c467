// The page: what is typed, what is chosen, and what is looked at again.

import * as access from "./access.js";
import * as detail from "./detail.js";
import { attempt, complain, find, forgive } from "./dom.js";
import { forgetSums, headOf, refresh } from "./heads.js";
import * as keys from "./keys.js";
import { JournalList } from "./list.js";
import * as path from "./path.js";
import * as spec from "./spec.js";
import * as summary from "./summary.js";
import * as tabs from "./tabs.js";
import * as tail from "./tail.js";

const HEADS_MS = 3000;
// Long lists cost brokers more.
const LIST_MS = 3000;
const LONG_LIST_MS = 15000;
const LONG = 1000;
const FEW = 100;
const TYPING_MS = 200;
const NEW = "new"; // Shorter than any name of a journal.

const list = new JournalList((error) => complain(error, "list"));
let showing = new AbortController();
let folder = "";
let typing;
let looking = 0;
let listedAt = 0;
let summedAt = 0;
let summedSelector = "";

const filter = () => ({
  folder,
  text: find("text").value,
  selector: find("selector").value.trim(),
});

async function look(options) {
  listedAt = performance.now();
  const { selector } = filter();
  if (selector !== summedSelector) forgetSums();
  summedSelector = selector;
  looking += 1;
  const isListed = await attempt(() => list.load(filter(), options), "list");
  looking -= 1;
  // Whoever waits for the list doesn't wait for its sums.
  if (isListed) {
    attempt(() => Promise.all([summary.show({ folder, selector }), lookAtHeads()]), "heads");
  }
}

const isFolder = (name) => name === "" || name.endsWith("/");

async function lookAtHeads() {
  const seen = new Set([folder, ...list.names]);
  const { chosen } = list;
  if (chosen && chosen !== NEW) seen.add(chosen);
  // Sums of many journals cost brokers more.
  const isDue = list.total <= FEW || performance.now() - summedAt >= LONG_LIST_MS;
  if (isDue) summedAt = performance.now();
  const names = [...seen].filter((name) => isDue || !isFolder(name) || !headOf(name));
  await refresh(names.slice(0, 200), summedSelector);
  list.draw();
  summary.showRate(folder);
  if (chosen) detail.showRate(chosen);
}

async function open(name, { focus }) {
  document.title = `${name} · Gazette`;
  find("detail-name").textContent = name;
  tabs.permit(tabs.all);
  const isThere = await attempt(async () => {
    const shown = await detail.show(name, showing.signal);
    tail.suit(shown.contentType);
    detail.showRate(name);
    if (tabs.current() === "spec") await spec.load(name, showing.signal);
    if (tabs.current() === "messages") await tail.begin();
  });
  find("detail").hidden = !isThere && find("detail").hidden;
  if (focus && isThere) find("detail").focus({ preventScroll: true });
}

function create() {
  document.title = "New journal · Gazette";
  find("detail-name").textContent = "New journal";
  tabs.permit(["spec"]);
  find("detail").hidden = false;
  spec.begin(folder);
}

async function choose({ focus = false } = {}) {
  const name = path.addressed();
  if (name === "journals") return; // The link that skips the head of the page.
  showing.abort();
  showing = new AbortController();
  forgive();
  forgive("detail");
  const before = folder;
  if (isFolder(name)) folder = name;
  else if (name !== NEW && (!name.startsWith(folder) || !listedAt)) folder = path.folderOf(name);
  path.show(folder);
  list.chosen = isFolder(name) ? "" : name;
  tail.reset(list.chosen);
  spec.leave();
  if (before !== folder || !listedAt) await look();
  else list.draw();
  if (isFolder(name)) {
    find("detail").hidden = true;
    document.title = "Journals · Gazette";
    if (focus) list.move(0);
  } else if (name === NEW) create();
  else await open(name, { focus });
}

const goTo = (name) => {
  location.hash = path.address(name);
};

function close() {
  if (list.chosen === "") return;
  goTo(folder);
}

async function again() {
  if (!document.hidden) {
    const period = list.total > LONG ? LONG_LIST_MS : LIST_MS;
    // A look ends the one before, which may be that of a folder that takes the focus.
    const isDue = looking === 0 && performance.now() - listedAt >= period - 100;
    if (isDue) await look({ keep: true });
    else await attempt(lookAtHeads, "heads");
    const name = list.chosen;
    if (name && name !== NEW && tabs.current() === "overview") {
      await attempt(() => detail.show(name, showing.signal), "detail");
    }
  }
  setTimeout(again, HEADS_MS);
}

find("filter").addEventListener("submit", (event) => event.preventDefault());
find("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(look, TYPING_MS);
});
find("close").addEventListener("click", close);
access.ask(() => look().then(() => choose()));
tabs.listen((name) => {
  if (name === "messages") attempt(tail.begin);
  else tail.stop();
  if (name !== "overview") forgive("detail");
  if (name === "spec" && spec.of() !== list.chosen) {
    attempt(() => spec.load(list.chosen, showing.signal));
  }
});
tail.listen(attempt);
spec.listen({
  applied: async (name) => {
    if (list.chosen === name) await spec.load(name, showing.signal);
    else goTo(name);
    await look({ keep: true });
  },
  again: () =>
    list.chosen === NEW ? spec.begin(folder) : attempt(() => spec.load(list.chosen, showing.signal)),
});
keys.listen({
  move: (by) => list.move(by),
  up: () => folder && goTo(path.above(folder)),
  close,
});
addEventListener("hashchange", () => choose({ focus: true }));

tabs.select("overview");
await choose();
setTimeout(again, HEADS_MS);
