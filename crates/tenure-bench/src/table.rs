//! Result tables, as text and as JSON.

use serde_json::{Value, json};

/// The results of a benchmark.
pub struct BenchTable {
    bench: &'static str,
    rows: Vec<BenchRow>,
}

/// One measurement.
pub struct BenchRow {
    /// Name of the row.
    pub name: String,
    /// The value of Tenure.
    pub value: f64,
    /// The value of the raw store or the bare machine.
    pub raw: Option<f64>,
    /// Unit of both values.
    pub unit: &'static str,
    /// The bar that the value must meet.
    pub bar: Bar,
}

/// The bar of a row.
#[derive(Clone, Copy)]
pub enum Bar {
    /// Maximum of value / raw.
    RatioAtMost(f64),
    /// Minimum of value / raw.
    RatioAtLeast(f64),
    /// Maximum of the value.
    AtMost(f64),
    /// Maximum of value − raw.
    BeyondRaw(f64),
    /// No bar: for information only.
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

    /// Prints a Markdown table and one line of JSON.
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
