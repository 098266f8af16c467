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
