// The token of this tab.

import { token } from "./api.js";
import { find } from "./dom.js";

function show() {
  find("token").value = "";
  find("token").placeholder = token.get() ? "in use" : "none";
  find("forget").hidden = !token.get();
}

// Calls `changed` whenever another token is in use, or none.
export function ask(changed) {
  find("access").addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(find("token").value.trim());
    show();
    changed();
  });
  find("forget").addEventListener("click", () => {
    token.set("");
    show();
    find("token").focus();
    changed();
  });
  show();
}
