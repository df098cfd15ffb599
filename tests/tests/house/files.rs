//! The parsed source files of every crate of the product.

use std::fs;
use std::path::{Path, PathBuf};

/// A crate of the workspace.
pub struct Crate {
    /// The name of the crate's directory in `crates/`.
    pub name: String,
    pub files: Vec<File>,
}

/// A source file of a crate.
pub struct File {
    /// The path below `src/`.
    pub path: String,
    /// The names of the modules that lead from the crate's root to this file. Empty for the root.
    pub module: Vec<String>,
    pub syntax: syn::File,
}

/// Returns every crate with the files of its `src/`, except files that are compiled only for tests.
pub fn crates() -> Vec<Crate> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut crates: Vec<Crate> = entries(&directory)
        .into_iter()
        .filter(|path| path.join("src").is_dir())
        .map(|path| {
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            Crate { name, files: modules(&path.join("src")) }
        })
        .collect();
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(crates.len() > 5, "the crates are elsewhere now");
    crates
}

/// Returns the paths of the source files that contain `word`, relative to `crates/`.
pub fn naming(word: &str) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let (mut directories, mut found) = (vec![crates.clone()], Vec::new());
    while let Some(directory) = directories.pop() {
        for path in entries(&directory) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && fs::read_to_string(&path).is_ok_and(|text| text.contains(word))
            {
                found.push(path.strip_prefix(&crates).expect("it is below").to_string_lossy().into_owned());
            }
        }
    }
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.expect("it can be listed").path()).collect()
}

/// Returns the files of a crate by following the module declarations from the crate's root, as the compiler does.
fn modules(src: &Path) -> Vec<File> {
    let mut files = Vec::new();
    for root in ["lib.rs", "main.rs"] {
        if src.join(root).is_file() {
            add(src, &src.join(root), Vec::new(), &mut files);
        }
    }
    files
}

fn add(src: &Path, path: &Path, module: Vec<String>, files: &mut Vec<File>) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let below = if matches!(path.file_name().and_then(|name| name.to_str()), Some("mod.rs" | "lib.rs" | "main.rs")) {
        path.parent().expect("a file is in a directory").to_owned()
    } else {
        path.with_extension("")
    };
    for item in &syntax.items {
        let syn::Item::Mod(inner) = item else { continue };
        if inner.content.is_some() || is_for_tests(&inner.attrs) {
            continue;
        }
        let name = inner.ident.to_string();
        let beside = below.join(format!("{name}.rs"));
        let file = if beside.is_file() { beside } else { below.join(&name).join("mod.rs") };
        add(src, &file, module.iter().cloned().chain([name]).collect(), files);
    }
    let path = path.strip_prefix(src).expect("it is below").to_string_lossy().into_owned();
    files.push(File { path, module, syntax });
}

/// Returns true if an item is compiled only for tests.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}
