//! Rows, for people and for machines.

use serde_json::{Value, json};

/// What a bench found.
pub struct BenchTable {
    bench: &'static str,
    rows: Vec<BenchRow>,
}

/// One thing measured.
pub struct BenchRow {
    /// What it is.
    pub name: String,
    /// What Tenure does.
    pub value: f64,
    /// What the raw store, or the bare machine, does.
    pub raw: Option<f64>,
    /// What both are counted in.
    pub unit: &'static str,
    /// What must hold.
    pub bar: Bar,
}

/// What a row must keep to.
#[derive(Clone, Copy)]
pub enum Bar {
    /// Value over raw at most.
    RatioAtMost(f64),
    /// Value over raw at least.
    RatioAtLeast(f64),
    /// The value itself at most.
    AtMost(f64),
    /// No more than so much beyond raw.
    BeyondRaw(f64),
    /// Nothing: it is there to be seen.
    None,
}

impl BenchRow {
    fn ratio(&self) -> Option<f64> {
        self.raw.filter(|raw| *raw > 0.0).map(|raw| self.value / raw)
    }

    fn is_ok(&self) -> bool {
        match self.bar {
            Bar::RatioAtMost(bar) => self.ratio().is_some_and(|ratio| ratio <= bar),
            Bar::RatioAtLeast(bar) => self.ratio().is_some_and(|ratio| ratio >= bar),
            Bar::AtMost(bar) => self.value <= bar,
            Bar::BeyondRaw(bar) => self.value <= self.raw.unwrap_or(0.0) + bar,
            Bar::None => true,
        }
    }

    fn bar_text(&self) -> String {
        match self.bar {
            Bar::RatioAtMost(bar) => format!("≤ {bar} × raw"),
            Bar::RatioAtLeast(bar) => format!("≥ {bar} × raw"),
            Bar::AtMost(bar) => format!("≤ {bar} {}", self.unit),
            Bar::BeyondRaw(bar) => format!("≤ raw + {bar} {}", self.unit),
            Bar::None => "–".to_owned(),
        }
    }
}

impl BenchTable {
    pub fn new(bench: &'static str) -> Self {
        Self { bench, rows: Vec::new() }
    }

    pub fn add(&mut self, row: BenchRow) {
        eprintln!("  {}", line(&row));
        self.rows.push(row);
    }

    /// A table in Markdown, and one line of JSON.
    pub fn print(&self) {
        println!("| row | Tenure | raw | ratio | bar | |\n|---|---|---|---|---|---|");
        for row in &self.rows {
            println!("{}", line(row));
        }
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "row": row.name, "value": row.value, "raw": row.raw, "ratio": row.ratio(),
                    "bar": row.bar_text(), "ok": row.is_ok(), "unit": row.unit,
                })
            })
            .collect();
        println!("{}", json!({ "bench": self.bench, "rows": rows }));
    }
}

fn line(row: &BenchRow) -> String {
    let number = |number: f64| if number >= 100.0 { format!("{number:.0}") } else { format!("{number:.3}") };
    let raw = row.raw.map_or_else(|| "–".to_owned(), |raw| format!("{} {}", number(raw), row.unit));
    let ratio = row.ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
    let verdict = if row.is_ok() { "ok" } else { "MISSED" };
    let (name, value, bar) = (&row.name, number(row.value), row.bar_text());
    format!("| {name} | {value} {} | {raw} | {ratio} | {bar} | {verdict} |", row.unit)
}
