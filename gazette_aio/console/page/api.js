// Requests of the page. The token is kept for this tab, and travels in a header only.

const KEY = "gazette-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

export class Problem extends Error {}

async function open(path, { query = {}, body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`${path}?${new URLSearchParams(query)}`, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The console doesn't answer.");
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    const hint = response.status === 401 ? " Enter a token of the brokers." : "";
    throw new Problem((answer.problem ?? `Status ${response.status}`) + hint);
  }
  return response;
}

export async function ask(path, options) {
  const response = await open(path, options);
  return response.json();
}

// Server-sent events. EventSource has no headers, and thus no token.
export async function* events(path, options) {
  const response = await open(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (pending + value).split("\n\n");
    pending = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").find((each) => each.startsWith("data: "));
      if (line === undefined) continue;
      const data = JSON.parse(line.slice(6));
      if (data.problem !== undefined) throw new Problem(data.problem);
      yield data;
    }
  }
}
