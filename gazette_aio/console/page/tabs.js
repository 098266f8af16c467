// Tabs of a journal: arrows move between them, as screen readers tell.

import { find } from "./dom.js";

const TABS = ["overview", "messages", "spec"];
let shown = TABS[0];

export const current = () => shown;

export function select(name, { focus = false } = {}) {
  shown = name;
  for (const each of TABS) {
    const tab = find(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    find(each).hidden = each !== name;
    if (focus && each === name) tab.focus();
  }
}

export function permit(names) {
  for (const each of TABS) find(`tab-${each}`).hidden = !names.includes(each);
  if (!names.includes(shown)) select(names[0]);
}

export const all = TABS;

export function listen(changed) {
  for (const each of TABS) {
    find(`tab-${each}`).addEventListener("click", () => {
      select(each);
      changed(each);
    });
  }
  find("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const permitted = TABS.filter((each) => !find(`tab-${each}`).hidden);
    const at = permitted.indexOf(shown);
    const name = permitted[(at + by + permitted.length) % permitted.length];
    select(name, { focus: true });
    changed(name);
  });
}
