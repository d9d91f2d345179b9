// Prometheus' text form to numbers, and rates and quantiles between two readings.

/** Map from a full series name, labels and all, to its value. */
export function parse(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const cut = line.lastIndexOf(" ");
    series.set(line.slice(0, cut), Number(line.slice(cut + 1)));
  }
  return series;
}

/** Labels of a series: {state: "free"}. */
export function labels(name) {
  const found = {};
  for (const [, key, value] of name.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) found[key] = value;
  return found;
}

/** Sum of all series of a metric. */
export function sum(series, metric) {
  let total = 0;
  for (const [name, value] of series) {
    if (name === metric || name.startsWith(metric + "{")) total += value;
  }
  return total;
}

/** Growth per second of a counter between two readings. */
export function rate(before, after, metric, seconds) {
  return Math.max(0, sum(after, metric) - sum(before, metric)) / seconds;
}

/** Quantile of what a histogram got between two readings; null if that is nothing. */
export function quantile(before, after, metric, share) {
  const buckets = [];
  for (const [name, value] of after) {
    if (!name.startsWith(metric + "_bucket{")) continue;
    const bound = labels(name).le;
    buckets.push([bound === "+Inf" ? Infinity : Number(bound), value - (before.get(name) ?? 0)]);
  }
  buckets.sort((a, b) => a[0] - b[0]);
  const count = buckets.length ? buckets[buckets.length - 1][1] : 0;
  if (!(count > 0)) return null;
  const wanted = share * count;
  let low = 0, below = 0;
  for (const [bound, cumulative] of buckets) {
    if (cumulative >= wanted) {
      if (bound === Infinity) return low;
      return low + (bound - low) * (wanted - below) / Math.max(1e-9, cumulative - below);
    }
    low = bound;
    below = cumulative;
  }
  return low;
}
