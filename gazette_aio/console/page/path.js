// Folders above the list, and addresses: a name is a journal, or a folder if it ends in a slash.

import { element, find } from "./dom.js";

export const address = (name) => `#${encodeURIComponent(name).replaceAll("%2F", "/")}`;

export function addressed() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // A mistyped address leads nowhere.
  }
}

export const folderOf = (name) => name.slice(0, name.lastIndexOf("/") + 1);

export const above = (folder) => folderOf(folder.slice(0, -1));

export function show(folder) {
  const crumbs = [["", "All journals"]];
  for (let end = folder.indexOf("/"); end !== -1; end = folder.indexOf("/", end + 1)) {
    const begin = crumbs.at(-1)[0].length;
    crumbs.push([folder.slice(0, end + 1), folder.slice(begin, end)]);
  }
  find("path").replaceChildren(
    ...crumbs.map(([path, text], index) => {
      const crumb = element("a", { href: address(path), textContent: text });
      if (index === crumbs.length - 1) crumb.setAttribute("aria-current", "location");
      return crumb;
    }),
  );
}
