// Ages, times and estimates in words. Functions of this module depend only on their arguments.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** Returns a number of seconds in at most two units, as the command line does: `45s`, `12m`, `3h20m`, `5d`. */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const minutes = Math.floor(whole / MINUTE);
  const hours = Math.floor(whole / HOUR);
  if (whole >= 2 * DAY) {
    return `${Math.floor(whole / DAY)}d`;
  }
  if (hours >= 1) {
    return minutes % 60 > 0 && hours < 10 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  }
  if (minutes >= 1) {
    return minutes < 10 && whole % MINUTE > 0 ? `${minutes}m${whole % MINUTE}s` : `${minutes}m`;
  }
  return `${whole}s`;
}

/** Returns the age of a time, or an empty text without a time. `now` is in milliseconds. */
export function age(time, now) {
  const since = time ? Date.parse(time) : NaN;
  return Number.isNaN(since) ? "" : span((now - since) / 1000);
}

/** Returns a local time such as `Tue 02:00`; for a time that is more than six days away, `12 Jan 02:00`. */
export function clock(time, now) {
  const then = new Date(time);
  const isFar = Math.abs(then - now) > 6 * DAY * 1000;
  const day = isFar ? { day: "numeric", month: "short" } : { weekday: "short" };
  const date = new Intl.DateTimeFormat("en-GB", day).format(then);
  const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" }).format(then);
  return `${date} ${hour}`;
}

/** Returns the short name of the local time zone, such as `CET`: the text of a gate has UTC. */
function zone(time) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date(time));
  return parts.find((part) => part.type === "timeZoneName")?.value ?? "";
}

/** Returns when a gate opens, such as `opens in 3h (Tue 02:00 CET)`. */
export function opens(time, now) {
  const left = (Date.parse(time) - now) / 1000;
  if (Number.isNaN(left)) {
    return "";
  }
  return left > 0 ? `opens in ${span(left)} (${clock(time, now)} ${zone(time)})` : "opens now";
}

/** Returns an estimate such as `+12m` in words; an empty text if nothing is left to do. */
export function left(estimate) {
  if (estimate === "?") {
    return "time left unknown";
  }
  return estimate?.startsWith("+") ? `about ${estimate.slice(1)} left` : "";
}

const UNITS = { d: DAY, h: HOUR, m: MINUTE, s: 1 };

/** Returns the seconds of an estimate, for sorting: -1 if nothing is left to do, infinite if unknown. */
export function estimateSeconds(estimate) {
  if (estimate === "?") {
    return Infinity;
  }
  let sum = -1;
  for (const [, number, unit] of (estimate ?? "").matchAll(/(\d+)([dhms])/g)) {
    sum = Math.max(sum, 0) + Number(number) * UNITS[unit];
  }
  return sum;
}

/** Returns a number and its noun: `1 node`, `2 nodes`. */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Returns the text with a full stop at its end and a capital letter at its start. */
export function sentence(text) {
  const trimmed = text.trim();
  const full = /[.!?…]$/.test(trimmed) ? trimmed : `${trimmed}.`;
  return full.charAt(0).toUpperCase() + full.slice(1);
}

/** Returns the settings in a text such as `rollout.maxUnavailable=3 rollout.maxFailures=2`. */
export function settings(text) {
  return text
    .trim()
    .split(/[\s,;]+(?=[A-Za-z][\w.]*=)/)
    .filter((setting) => setting !== "");
}
