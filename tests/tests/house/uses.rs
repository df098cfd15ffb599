//! Finds the names that a file uses: names from other files, and its words, functions and docs.

use super::files::{Crate, File, is_for_tests};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Returns, for each file, the other files whose names it uses.
pub fn between_files(of: &Crate) -> BTreeMap<String, BTreeSet<String>> {
    let names = Names::of(of);
    of.files.iter().map(|file| (file.path.clone(), used_by(file, &names))).collect()
}

fn used_by(file: &File, names: &Names<'_>) -> BTreeSet<String> {
    let mut paths = Paths::default();
    paths.visit_file(&file.syntax);
    let mut used = BTreeSet::new();
    for path in &paths.named {
        used.extend(names.defined_in(&file.module, path));
    }
    for (path, name) in &paths.exported {
        // A name that the file only re-exports does not count as used.
        if paths.words.get(name).is_some_and(|count| *count > 1) {
            used.extend(names.defined_in(&file.module, path));
        }
    }
    used.remove(&file.path);
    used
}

/// For each module of a crate, the names that it defines and re-exports.
struct Names<'a> {
    modules: BTreeMap<&'a [String], Module>,
}

#[derive(Default)]
struct Module {
    path: String,
    /// The path that each imported name stands for.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

impl<'a> Names<'a> {
    fn of(of: &'a Crate) -> Names<'a> {
        let modules = of.files.iter().map(|file| {
            let mut paths = Paths::default();
            paths.visit_file(&file.syntax);
            let imports = paths.imports.into_iter().collect();
            (file.module.as_slice(), Module { path: file.path.clone(), imports, globs: paths.globs })
        });
        Names { modules: modules.collect() }
    }

    /// Returns the file that defines `path` as seen from `module`. `None` if no file of this crate does.
    fn defined_in(&self, module: &[String], path: &[String]) -> Option<String> {
        self.look(module, path, 0)
    }

    fn look(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        if depth > 16 {
            return None;
        }
        let mut at = module.to_vec();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => (at, rest) = (Vec::new(), &rest[1..]),
            Some("self") => rest = &rest[1..],
            Some("super") => {}
            Some(first) if self.has_child(&at, first) => {}
            // The path begins with the name of another crate or with an imported name. `Paths::named` has the import as
            // a path of its own.
            _ if depth == 0 => return None,
            _ => {}
        }
        while rest.first().is_some_and(|name| name == "super") {
            at.pop();
            rest = &rest[1..];
        }
        while let Some(name) = rest.first() {
            let child: Vec<String> = at.iter().cloned().chain([name.clone()]).collect();
            if !self.modules.contains_key(child.as_slice()) {
                break;
            }
            (at, rest) = (child, &rest[1..]);
        }
        let here = self.modules.get(at.as_slice())?;
        let Some(name) = rest.first() else { return Some(here.path.clone()) };
        if let Some(import) = here.imports.get(name) {
            let further: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
            return self
                .look(&at, &further, depth + 1)
                .or_else(|| self.is_ours(&at, &further).then(|| here.path.clone()));
        }
        let through = here.globs.iter().find_map(|glob| {
            let further: Vec<String> = glob.iter().chain(rest).cloned().collect();
            self.look(&at, &further, depth + 1).filter(|found| *found != here.path && self.defines(found, name))
        });
        Some(through.unwrap_or_else(|| here.path.clone()))
    }

    fn is_ours(&self, at: &[String], path: &[String]) -> bool {
        path.first()
            .is_some_and(|first| ["crate", "self", "super"].contains(&first.as_str()) || self.has_child(at, first))
    }

    fn has_child(&self, at: &[String], name: &str) -> bool {
        let child: Vec<String> = at.iter().cloned().chain([name.to_owned()]).collect();
        self.modules.contains_key(child.as_slice())
    }

    fn defines(&self, file: &str, _name: &str) -> bool {
        self.modules.values().any(|module| module.path == file)
    }
}

/// The paths that a file names outside of its tests.
#[derive(Default)]
struct Paths {
    named: Vec<Vec<String>>,
    /// Re-exported paths with the names under which they are exported.
    exported: Vec<(Vec<String>, String)>,
    imports: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    /// How often each word occurs.
    words: BTreeMap<String, usize>,
}

impl Paths {
    fn tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>, is_exported: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before, is_exported);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before, is_exported)),
            syn::UseTree::Glob(_) => {
                self.named.push(before.clone());
                self.globs.push(before.clone());
            }
            syn::UseTree::Name(name) => self.import(&name.ident, &name.ident, before, is_exported),
            syn::UseTree::Rename(rename) => self.import(&rename.ident, &rename.rename, before, is_exported),
        }
    }

    fn import(&mut self, ident: &syn::Ident, name: &syn::Ident, before: &[String], is_exported: bool) {
        let mut path = before.to_vec();
        if ident == "self" {
            let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name.to_string() };
            self.imports.push((name, path.clone()));
            // An import of a module by `self` counts as a use of the module's file. A re-export does not.
            self.words_of_module(path, is_exported);
            return;
        }
        path.push(ident.to_string());
        self.imports.push((name.to_string(), path.clone()));
        if is_exported {
            self.exported.push((path, name.to_string()));
        } else {
            self.named.push(path);
        }
    }

    fn words_of_module(&mut self, path: Vec<String>, is_exported: bool) {
        if !is_exported {
            self.named.push(path);
        }
    }

    /// Reads the tokens of a macro call, because `syn` does not parse them. Words that `::` joins count as paths.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    *self.words.entry(ident.to_string()).or_default() += 1;
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.tokens(group.stream());
                }
                _ => self.end_path(&mut path),
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.named.push(std::mem::take(path));
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_exported = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &mut Vec::new(), is_exported);
        if is_exported {
            visit::visit_item_use(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.named.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, ident: &'ast syn::Ident) {
        *self.words.entry(ident.to_string()).or_default() += 1;
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(mac.tokens.clone());
        visit::visit_macro(self, mac);
    }

    // `pub(in a::b)` names a module but does not use it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    // Attributes contain docs, which may name any item without using it.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// A function outside of tests.
pub struct Function {
    pub name: String,
    /// The number of the function's first line, counted from 1.
    pub first_line: usize,
    pub lines: usize,
}

/// Returns the functions of a file.
pub fn functions(file: &File) -> Vec<Function> {
    #[derive(Default)]
    struct Functions(Vec<Function>);
    impl Functions {
        fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
            let first_line = signature.fn_token.span.start().line;
            let lines = block.brace_token.span.close().end().line - first_line + 1;
            self.0.push(Function { name: signature.ident.to_string(), first_line, lines });
        }
    }
    impl<'ast> Visit<'ast> for Functions {
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            if !is_for_tests(&item.attrs) {
                visit::visit_item_mod(self, item);
            }
        }
        fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
            self.add(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
        fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
            self.add(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }
    let mut look = Functions::default();
    look.visit_file(&file.syntax);
    look.0
}

/// Returns the macros that a file calls outside of tests, including calls in the arguments of other macros.
pub fn macros(file: &File) -> BTreeSet<String> {
    #[derive(Default)]
    struct Macros(BTreeSet<String>);
    impl Macros {
        fn within(&mut self, tokens: TokenStream) {
            let mut last = None;
            for token in tokens {
                match &token {
                    TokenTree::Punct(punct) if punct.as_char() == '!' => self.0.extend(last.take()),
                    TokenTree::Group(group) => self.within(group.stream()),
                    _ => {}
                }
                last = if let TokenTree::Ident(ident) = token { Some(ident.to_string()) } else { None };
            }
        }
    }
    impl<'ast> Visit<'ast> for Macros {
        fn visit_item(&mut self, item: &'ast syn::Item) {
            if !is_for_tests(attributes(item)) {
                visit::visit_item(self, item);
            }
        }
        fn visit_macro(&mut self, mac: &'ast syn::Macro) {
            self.0.extend(mac.path.segments.last().map(|last| last.ident.to_string()));
            self.within(mac.tokens.clone());
        }
    }
    let mut look = Macros::default();
    look.visit_file(&file.syntax);
    look.0
}

/// Returns the first line of the docs of each item in a file, and of each member of these items.
pub fn docs(file: &File) -> Vec<String> {
    #[derive(Default)]
    struct Docs {
        found: Vec<String>,
        last_line: usize,
    }
    impl<'ast> Visit<'ast> for Docs {
        fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
            let syn::Meta::NameValue(meta) = &attribute.meta else { return };
            let (true, syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })) =
                (meta.path.is_ident("doc"), &meta.value)
            else {
                return;
            };
            let line = attribute.pound_token.span.start().line;
            if line != self.last_line + 1 {
                self.found.push(text.value());
            }
            self.last_line = line;
        }
    }
    let mut look = Docs::default();
    look.visit_file(&file.syntax);
    look.found
}
