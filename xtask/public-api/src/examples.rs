//! Public items without an example. rustdoc's own lint does not look through re-exports of private modules.

use std::collections::HashSet;
use std::fs;

use serde_json::Value;

/// The kinds of items that need an example. The example of a type covers its methods.
const KINDS: [&str; 7] = ["module", "struct", "enum", "trait", "function", "macro", "proc_macro"];

/// Lists the public items in a rustdoc JSON file whose documentation has no code block.
pub fn list_missing(file: &str) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let document: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut walk = Walk { document: &document, seen: HashSet::new(), missing: Vec::new() };
    walk.visit(&document["root"], "");
    walk.missing.sort();
    Ok(walk.missing)
}

struct Walk<'a> {
    document: &'a Value,
    seen: HashSet<String>,
    missing: Vec<String>,
}

impl Walk<'_> {
    /// Visits an item by its id, and the items inside.
    fn visit(&mut self, id: &Value, path: &str) {
        let id = id.to_string();
        let item = &self.document["index"][id.as_str()];
        let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next()) else { return };
        if item["attrs"].to_string().contains("hidden") {
            return;
        }
        if kind == "use" {
            return self.visit(&inner["id"], path);
        }
        let name = format!("{path}{}", item["name"].as_str().unwrap_or("?"));
        if !self.seen.insert(id) || !KINDS.contains(&kind.as_str()) {
            return;
        }
        if !item["docs"].as_str().is_some_and(|docs| docs.contains("```")) {
            self.missing.push(format!("{kind} {name}"));
        }
        for inside in inner["items"].as_array().filter(|_| kind == "module").into_iter().flatten() {
            self.visit(inside, &format!("{name}::"));
        }
    }
}
