// Texts of numbers. Offsets are decimal digits, beyond what Number can hold.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function bytes(digits) {
  let value = Number(digits);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

export const grouped = (digits) => BigInt(digits).toLocaleString("en");

export const count = (number) => number.toLocaleString("en");

export const rate = (perSecond) => (perSecond > 0 ? `${bytes(Math.round(perSecond))}/s` : "–");

export const time = (seconds) =>
  seconds ? new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + "Z" : "–";

// A time of ISO 8601, with its date and its zone.
export const moment = (text) => text && text.replace("T", " ").replace("+00:00", "Z");

// The time that a person wrote, as the console writes it; empty if it's none. UTC without a zone.
export function instant(text) {
  const found = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d(?:\.\d{1,3})?)?)?\s*(Z|[+-]\d\d:?\d\d)?$/i.exec(text);
  if (!found) return "";
  const [, date, minute = "00:00", second = ":00", zone = "Z"] = found;
  const time = new Date(`${date}T${minute}${second}${zone}`);
  return Number.isNaN(time.getTime()) ? "" : time.toISOString().replace("Z", "+00:00");
}
