//! The JSON of rustdoc for several crates, with the re-exports between them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

/// The crate whose API is listed, then the crates whose items it re-exports.
pub struct Documents(Vec<Value>);

/// One item of one of the crates.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    document: &'a Value,
    id: &'a Value,
}

impl Documents {
    pub fn read(files: &[String]) -> Result<Self, String> {
        let read = |file: &String| {
            let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))
        };
        files.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The module with everything that the listed crate makes public.
    pub fn root(&self) -> Item<'_> {
        Item { document: &self.0[0], id: &self.0[0]["root"] }
    }

    /// What a re-export names, if one of these crates has it.
    pub fn resolve<'a>(&'a self, item: Item<'a>) -> Option<Item<'a>> {
        if item.body().is_some() {
            return Some(item);
        }
        let path = &item.document["paths"][item.key().as_str()]["path"];
        self.0.iter().find_map(|document| {
            let found = document["index"].as_object()?.values().find(|found| {
                let id = found["id"].to_string();
                found["crate_id"] == 0 && document["paths"][id.as_str()]["path"] == *path
            });
            Some(Item { document, id: &found?["id"] })
        })
    }

    /// The public paths of the items of other crates that the listed crate re-exports.
    pub fn re_exported_paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut modules = vec![self.root()];
        while let Some(module) = modules.pop() {
            for inside in module.children() {
                match inside.kind() {
                    Some("module") if !inside.is_hidden() => modules.push(inside),
                    Some("use") if !inside.is_hidden() => {
                        let used = inside.used().filter(|used| used.body().is_none());
                        let found = used.and_then(|used| self.resolve(used));
                        paths.extend(found.and_then(|found| Some(found.crate_path(inside.source()?))));
                    }
                    _ => {}
                }
            }
        }
        paths
    }
}

impl<'a> Item<'a> {
    fn key(self) -> String {
        self.id.to_string()
    }

    fn entry(self) -> &'a Value {
        &self.document["index"][self.key().as_str()]
    }

    fn body(self) -> Option<(&'a String, &'a Value)> {
        self.entry()["inner"].as_object()?.iter().next()
    }

    /// An identity among all items.
    pub fn identity(self) -> (usize, String) {
        (std::ptr::from_ref(self.document).addr(), self.key())
    }

    pub fn kind(self) -> Option<&'a str> {
        self.body().map(|(kind, _)| kind.as_str())
    }

    pub fn name(self) -> &'a str {
        self.entry()["name"].as_str().unwrap_or("?")
    }

    pub fn docs(self) -> &'a str {
        self.entry()["docs"].as_str().unwrap_or_default()
    }

    pub fn is_hidden(self) -> bool {
        self.entry()["attrs"].to_string().contains("hidden")
    }

    /// The items of a module.
    pub fn children(self) -> Vec<Self> {
        let items = self.body().and_then(|(_, body)| body["items"].as_array());
        items.into_iter().flatten().map(|id| Self { id, ..self }).collect()
    }

    /// The item that a re-export names.
    pub fn used(self) -> Option<Self> {
        self.body().map(|(_, body)| Self { id: &body["id"], ..self })
    }

    /// How a re-export names its item.
    fn source(self) -> Option<&'a str> {
        self.body()?.1["source"].as_str()
    }

    /// The path of an item in its own crate, from how another crate names it.
    fn crate_path(self, source: &str) -> String {
        let root = Self { id: &self.document["root"], ..self }.name();
        let source = source.trim_start_matches("crate::");
        if source.starts_with(&format!("{root}::")) { source.to_owned() } else { format!("{root}::{source}") }
    }
}
