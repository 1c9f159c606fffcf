//! Keywords and names in a file, also in the bodies of macros, where a parser sees tokens only.

use super::Source;
use super::tree::imports;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};
use syn::{
    Attribute, ExprMethodCall, ExprUnsafe, File, ItemForeignMod, ItemImpl, ItemTrait, ItemUse, Macro,
    Signature,
};

/// Counts unsafe code: blocks, functions, implementations, traits, foreign items, attributes, and the word in macros. Types of
/// unsafe functions are not counted.
#[must_use]
pub fn unsafe_count(file: &File) -> usize {
    let mut counter = Unsafe(0);
    counter.visit_file(file);
    counter.0
}

struct Unsafe(usize);

impl<'ast> Visit<'ast> for Unsafe {
    fn visit_expr_unsafe(&mut self, block: &'ast ExprUnsafe) {
        self.0 += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.0 += usize::from(signature.unsafety.is_some());
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.0 += usize::from(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.0 += usize::from(item.unsafety.is_some());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast ItemForeignMod) {
        self.0 += usize::from(item.unsafety.is_some());
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.0 += usize::from(attribute.path().is_ident("unsafe"));
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.0 += idents(&call.tokens).iter().filter(|(name, _)| name == "unsafe").count();
    }
}

/// The lines with calls of the method `name` without arguments.
#[must_use]
pub fn calls_of(file: &File, name: &str) -> Vec<usize> {
    let mut calls = Calls { name, lines: Vec::new() };
    calls.visit_file(file);
    calls.lines
}

struct Calls<'n> {
    name: &'n str,
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if call.method == self.name && call.args.is_empty() {
            self.lines.push(call.method.span().start().line);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.in_tokens(&call.tokens);
    }
}

impl Calls<'_> {
    fn in_tokens(&mut self, tokens: &TokenStream) {
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.in_tokens(&group.stream()),
                TokenTree::Ident(name) if *name == self.name && at > 0 && is_punct(&tokens[at - 1], '.') => {
                    if let Some(TokenTree::Group(group)) = tokens.get(at + 1)
                        && group.delimiter() == Delimiter::Parenthesis
                        && group.stream().is_empty()
                    {
                        self.lines.push(name.span().start().line);
                    }
                }
                _ => {}
            }
        }
    }
}

/// All identifiers and keywords with their lines.
#[must_use]
pub fn idents(tokens: &TokenStream) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for token in tokens.clone() {
        match token {
            TokenTree::Group(group) => found.extend(idents(&group.stream())),
            TokenTree::Ident(name) => found.push((name.to_string(), name.span().start().line)),
            _ => {}
        }
    }
    found
}

/// The packages that files of one package name: the first names of paths, except those imported from elsewhere, in the same file or, for a file that
/// imports all of a module, in any file.
#[must_use]
pub fn packages(sources: &[Source]) -> BTreeSet<String> {
    let imports: Vec<_> = sources.iter().map(Imports::of).collect();
    let anywhere: BTreeSet<_> = imports.iter().flat_map(|imports| &imports.names).cloned().collect();
    let of_file = |(source, imports): (&Source, &Imports)| {
        let known = if imports.has_glob { &anywhere } else { &imports.names };
        let mut names = first_names(&source.tokens());
        names.retain(|name| !known.contains(name));
        names
    };
    sources.iter().zip(&imports).flat_map(of_file).collect()
}

/// The names that a file imports.
#[derive(Default)]
struct Imports {
    names: BTreeSet<String>,
    has_glob: bool,
}

impl Imports {
    fn of(source: &Source) -> Self {
        let mut imports = Self::default();
        imports.visit_file(&source.parse());
        imports
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for (import, _) in imports(item) {
            self.has_glob |= import.name.is_none();
            self.names.extend(import.name.filter(|name| import.path.len() > 1 && import.path[0] != *name));
        }
    }
}

/// The names that paths begin with, and the names that `use` and `extern crate` give without a path.
#[must_use]
pub fn first_names(tokens: &TokenStream) -> Vec<String> {
    let tokens: Vec<_> = tokens.clone().into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => found.extend(first_names(&group.stream())),
            TokenTree::Ident(name) => {
                let before = |back: usize| at.checked_sub(back).map(|at| &tokens[at]);
                let inside = before(1).is_some_and(|token| is_punct(token, ':'))
                    && before(2).is_some_and(|token| is_punct(token, ':'))
                    && before(3)
                        .is_some_and(|token| matches!(token, TokenTree::Ident(_)) || is_punct(token, '>'));
                let is_path =
                    [1, 2].iter().all(|&ahead| tokens.get(at + ahead).is_some_and(|t| is_punct(t, ':')));
                let is_named = before(1).is_some_and(
                    |token| matches!(token, TokenTree::Ident(word) if *word == "use" || *word == "crate"),
                );
                if !inside && (is_path || is_named) {
                    found.push(name.to_string());
                }
            }
            _ => {}
        }
    }
    found
}

/// The paths of at least two names in tokens, and the single names that begin with a capital letter or that are called.
#[must_use]
pub fn paths(tokens: &TokenStream) -> Vec<(Vec<String>, usize)> {
    let tokens: Vec<_> = tokens.clone().into_iter().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Group(group) => found.extend(paths(&group.stream())),
            TokenTree::Ident(first) => {
                let mut path = vec![first.to_string()];
                while let (Some(a), Some(b), Some(TokenTree::Ident(name))) =
                    (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2))
                    && is_punct(a, ':')
                    && is_punct(b, ':')
                {
                    path.push(name.to_string());
                    at += 3;
                }
                let is_called = matches!(tokens.get(at), Some(TokenTree::Group(group))
                    if group.delimiter() == Delimiter::Parenthesis);
                if path.len() > 1 || is_called || path[0].starts_with(char::is_uppercase) {
                    found.push((path, first.span().start().line));
                }
            }
            _ => {}
        }
    }
    found
}

/// A token is this character.
#[must_use]
pub fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_counted_once_each_and_words_in_text_are_not() {
        // The code is in a string, so that this file has no unsafe code itself.
        let code = r#"
            /// unsafe
            unsafe fn one(_: unsafe extern "C" fn()) -> &'static str { "unsafe // unsafe" }
            unsafe impl Two for Three {}
            #[unsafe(no_mangle)]
            fn three() { assert!(unsafe { four() }) }
            #[cfg(test)]
            mod tests { fn five() { unsafe { unsafe { five() } } } }
            macro_rules! seven { () => { unsafe { seven() } } }
        "#;
        let file = syn::parse_str(code).unwrap();
        assert_eq!(unsafe_count(&file), 7);
    }

    #[test]
    fn calls_are_found_in_macros_and_not_in_text() {
        let file: File = syn::parse_str(
            "fn f() {\n  g(\"http://x\").unwrap();\n  assert!(x.unwrap() == [y.unwrap()][0], \".unwrap()\");\n  \
             unwrap(); x.unwrap(1);\n}",
        )
        .unwrap();
        assert_eq!(calls_of(&file, "unwrap"), [2, 3, 3]);
    }

    #[test]
    fn first_names_are_those_of_crates() {
        let code = "use serde; use log::{info, error as e}; fn f() -> a::b::C<d::E> { <f::G as h::I>::j(); ::k::l!(m) }";
        let names = first_names(&code.parse().unwrap());
        assert_eq!(names, ["serde", "log", "a", "d", "f", "h", "k"]);
    }

    #[test]
    fn a_module_of_another_package_is_no_package() {
        let source = |code: &str| Source { path: String::new(), code: code.to_owned() };
        let files = [
            source(
                "use rustix::event::epoll; use log; use serde::Serialize; fn f() { epoll::wait(toml::f()) }",
            ),
            source("use super::*; fn f() { epoll::wait(libc::f()) }"),
        ];
        assert_eq!(
            packages(&files),
            ["libc", "log", "rustix", "serde", "super", "toml"].map(str::to_owned).into()
        );
        assert!(packages(&[source("fn f() { epoll::wait() }")]).contains("epoll"));
    }

    #[test]
    fn paths_in_tokens_are_those_that_name_something() {
        let found = paths(&"x == super::a::B { c: D, e: f(g::h) }".parse().unwrap());
        let found: Vec<_> = found.into_iter().map(|(path, _)| path.join("::")).collect();
        assert_eq!(found, ["super::a::B", "D", "f", "g::h"]);
    }
}
