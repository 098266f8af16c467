// Requests of the page. The token is kept for this tab, and travels in a header only.

const KEY = "gazette-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

export class Problem extends Error {}

export async function ask(path, { query = {}, body, signal } = {}) {
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
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const hint = response.status === 401 ? " Enter a token of the brokers." : "";
    throw new Problem((answer.problem ?? `Status ${response.status}`) + hint);
  }
  return answer;
}
