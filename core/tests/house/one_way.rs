//! Checks that imports have no cycle: no two files of a crate import each other, directly or through other files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use super::sources;

/// Module path within a crate, such as `["agent", "step"]`. The path of the root is empty.
type Module = Vec<String>;

/// For each module of a crate, the modules that it imports.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the module path of a source file, from the file's path below `src/`. `None` for tests.
fn module_of(source: &Path) -> Option<Module> {
    let mut parts: Module = source
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if parts.iter().any(|part| part == "tests" || part == "properties") {
        return None;
    }
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

/// Collects the paths in a file that lead into the file's own crate, as paths from the crate's root.
struct Paths {
    /// Module of the code that is being visited.
    here: Module,
    children: BTreeSet<String>,
    found: Vec<Module>,
}

fn child(parent: &[String], name: &syn::Ident) -> Module {
    [parent, &[name.to_string()]].concat()
}

impl Paths {
    /// Adds a path if it leads into the file's own crate.
    fn add(&mut self, path: &[String]) {
        let Some((first, mut rest)) = path.split_first() else {
            return;
        };
        let mut module = match first.as_str() {
            "crate" => vec![],
            "self" => self.here.clone(),
            "super" => self.here[..self.here.len().saturating_sub(1)].to_vec(),
            child if self.children.contains(child) => [self.here.as_slice(), std::slice::from_ref(first)].concat(),
            _ => return,
        };
        while let Some((first, others)) = rest.split_first()
            && first == "super"
        {
            module.pop();
            rest = others;
        }
        module.extend_from_slice(rest);
        self.found.push(module);
    }

    fn add_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => self.add_tree(&child(before, &path.ident), &path.tree),
            syn::UseTree::Name(name) => self.add(&child(before, &name.ident)),
            syn::UseTree::Rename(name) => self.add(&child(before, &name.ident)),
            syn::UseTree::Glob(_) => self.add(before),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(before, tree);
                }
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.add_tree(&[], &item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) || item.content.is_none() {
            return;
        }
        self.here.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.here.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.add(&names);
        }
        visit::visit_path(self, path);
    }
}

/// Returns the paths in a file that lead into the file's own crate.
fn paths(module: &Module, text: &str) -> Vec<Module> {
    let file = syn::parse_file(text).unwrap();
    let mut paths = Paths {
        here: module.clone(),
        children: BTreeSet::new(),
        found: vec![],
    };
    for item in &file.items {
        if let syn::Item::Mod(child) = item
            && child.content.is_none()
        {
            paths.children.insert(child.ident.to_string());
        }
    }
    paths.visit_file(&file);
    paths.found
}

/// Returns the modules that each module imports. An imported path belongs to the module with the longest matching path.
fn imports(sources: &BTreeMap<Module, String>) -> Imports {
    let mut imports = Imports::new();
    for (module, text) in sources {
        let mut named = BTreeSet::new();
        for path in paths(module, text) {
            let lengths = (0..=path.len()).rev();
            let holder = lengths
                .map(|length| path[..length].to_vec())
                .find(|prefix| sources.contains_key(prefix));
            named.extend(holder.filter(|holder| holder != module));
        }
        imports.insert(module.clone(), named);
    }
    imports
}

/// Returns the modules in import cycles: those that import themselves through other modules.
fn rings(imports: &Imports) -> Vec<Module> {
    let mut found = vec![];
    for module in imports.keys() {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Module> = imports[module].iter().collect();
        while let Some(other) = next.pop() {
            if reached.insert(other) {
                next.extend(&imports[other]);
            }
        }
        if reached.contains(module) {
            found.push(module.clone());
        }
    }
    found
}

fn sources_of(name: &str) -> BTreeMap<Module, String> {
    let directory = format!("{name}/src");
    let mut sources = BTreeMap::new();
    for file in sources::files(&directory) {
        // Skip programs: Rust compiles each of them as a separate crate.
        let source: PathBuf = file.strip_prefix(&directory).unwrap().to_owned();
        let is_program = source.starts_with("bin") || source == Path::new("main.rs");
        if is_program || file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        if let Some(module) = module_of(&source) {
            sources.insert(module, sources::text(&file).unwrap());
        }
    }
    sources
}

/// Returns the directories of all crates with a library.
fn crates() -> Vec<String> {
    let mut names = vec![];
    for file in sources::files("") {
        if let Some(name) = file.to_string_lossy().strip_suffix("/src/lib.rs") {
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn no_files_import_each_other() {
    let mut report = String::new();
    let crates = crates();
    assert!(crates.len() >= 9, "{crates:?}");
    for name in crates {
        let imports = imports(&sources_of(&name));
        assert!(imports.len() > 1, "{name} has sources");
        let ring = rings(&imports);
        for module in &ring {
            let others = imports[module].iter().filter(|other| ring.contains(other));
            let others: Vec<String> = others.map(|other| other.join("::")).collect();
            report.push_str(&format!(
                "{name}: {} imports {}\n",
                module.join("::"),
                others.join(", ")
            ));
        }
    }
    assert!(
        report.is_empty(),
        "these files import each other; move the types that both need to a file above them:\n{report}"
    );
}

/// Returns the number of modules in import cycles, in a crate that consists of these three files.
fn ring_of(root: &str, a: &str, b: &str) -> usize {
    let files = [(vec![], root), (vec!["a".to_owned()], a), (vec!["b".to_owned()], b)];
    let sources = files.map(|(module, text)| (module, text.to_owned()));
    rings(&imports(&BTreeMap::from(sources))).len()
}

#[test]
fn rings_are_found_in_every_kind_of_import() {
    assert_eq!(ring_of("mod a; mod b;", "use crate::b::X;", "struct X;"), 0);
    assert_eq!(
        ring_of("mod a; mod b;", "use super::{b::X};", "use crate::a::{self, Y as Z};"),
        2
    );
    assert_eq!(
        ring_of("mod a; mod b;", "fn f() { super::b::g() }", "type X = crate::a::Y;"),
        2
    );
    assert_eq!(
        ring_of("mod a; mod b; pub use a::X;", "use crate::X;", ""),
        2,
        "a re-export imports"
    );
    assert_eq!(
        ring_of(
            "mod a; mod b;",
            "use crate::b::X;",
            "#[cfg(test)] mod tests { use crate::a::Y; }"
        ),
        0
    );
}
