//! Public items without an example. rustdoc's own lint does not look through re-exports of private modules.

use std::collections::HashSet;

use crate::document::{Documents, Item};

/// The kinds of items that need an example. The example of a type covers its methods.
const KINDS: [&str; 7] = ["module", "struct", "enum", "trait", "function", "macro", "proc_macro"];

/// Lists the public items whose documentation has no code block.
pub fn list_missing(documents: &Documents) -> Vec<String> {
    let mut walk = Walk { documents, seen: HashSet::new(), missing: Vec::new() };
    walk.visit(documents.root(), "");
    walk.missing.sort();
    walk.missing
}

struct Walk<'a> {
    documents: &'a Documents,
    seen: HashSet<(usize, String)>,
    missing: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Visits an item, and the items inside.
    fn visit(&mut self, item: Item<'a>, path: &str) {
        let Some(kind) = item.kind().filter(|_| !item.is_hidden()) else { return };
        if kind == "use" {
            if let Some(used) = item.used().and_then(|used| self.documents.resolve(used)) {
                self.visit(used, path);
            }
            return;
        }
        if !self.seen.insert(item.identity()) || !KINDS.contains(&kind) {
            return;
        }
        let name = format!("{path}{}", item.name());
        if !item.docs().contains("```") {
            self.missing.push(format!("{kind} {name}"));
        }
        if kind == "module" {
            for inside in item.children() {
                self.visit(inside, &format!("{name}::"));
            }
        }
    }
}
