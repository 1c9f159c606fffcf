//! The conditions that attributes set for the compilation of code: they tell code for tests and fuzzing from code of the product.

use proc_macro2::TokenStream;
use syn::punctuated::Punctuated;
use syn::{Attribute, File, ImplItem, Item, Meta, Token, TraitItem};

/// Conditions that hold for tests only.
pub const TEST: &[&str] = &["test"];

/// Conditions that no product is built with: tests, fuzzing, and the driver that does nothing.
pub const UNSHIPPED: &[&str] = &["test", "fuzzing", "null-driver"];

/// Code behind these attributes is compiled only if one of the conditions in `off` holds.
#[must_use]
pub fn needs(attributes: &[Attribute], off: &[&str]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => predicate(&list.tokens, off) == Some(false),
        _ => false,
    })
}

/// The value of a predicate if no condition in `off` holds; `None` if the value depends on other conditions.
fn predicate(tokens: &TokenStream, off: &[&str]) -> Option<bool> {
    value(&syn::parse2(tokens.clone()).ok()?, off)
}

fn value(meta: &Meta, off: &[&str]) -> Option<bool> {
    match meta {
        Meta::Path(path) => path.get_ident().filter(|name| off.iter().any(|&o| **name == o)).map(|_| false),
        Meta::NameValue(pair) => {
            let syn::Expr::Lit(literal) = &pair.value else { return None };
            let syn::Lit::Str(feature) = &literal.lit else { return None };
            (pair.path.is_ident("feature") && off.contains(&feature.value().as_str())).then_some(false)
        }
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let values: Vec<_> = parts.iter().map(|part| value(part, off)).collect();
            if list.path.is_ident("not") {
                values.first().copied().flatten().map(|value| !value)
            } else if list.path.is_ident("all") {
                decided(&values, false)
            } else if list.path.is_ident("any") {
                decided(&values, true)
            } else {
                None
            }
        }
    }
}

/// A single part with the value `deciding` decides the result; the opposite result needs all parts.
fn decided(values: &[Option<bool>], deciding: bool) -> Option<bool> {
    if values.contains(&Some(deciding)) {
        Some(deciding)
    } else {
        values.iter().all(|&value| value == Some(!deciding)).then_some(!deciding)
    }
}

/// The attributes of an item.
#[must_use]
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The attributes of a part of an implementation.
#[must_use]
pub fn attributes_in_impl(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Removes the items that only tests contain.
pub fn without_tests(file: &mut File) {
    take_tests_out(&mut file.items);
}

fn take_tests_out(items: &mut Vec<Item>) {
    items.retain(|item| !needs(attributes(item), TEST));
    for item in items {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    take_tests_out(items);
                }
            }
            Item::Impl(block) => block.items.retain(|item| !needs(attributes_in_impl(item), TEST)),
            Item::Trait(block) => {
                block.items.retain(|item| !matches!(item, TraitItem::Fn(f) if needs(&f.attrs, TEST)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::calls_of;
    use super::*;
    use syn::parse_quote;

    #[test]
    fn only_what_cannot_be_compiled_otherwise_needs_a_condition() {
        let attributes: [(Attribute, bool, bool); 9] = [
            (parse_quote!(#[test]), true, true),
            (parse_quote!(#[cfg(test)]), true, true),
            (parse_quote!(#[cfg(all(test, target_os = "linux"))]), true, true),
            (parse_quote!(#[cfg(any(test, feature = "fuzzing"))]), false, true),
            (parse_quote!(#[cfg(all(unix, any(test, feature = "null-driver")))]), false, true),
            (parse_quote!(#[cfg(any(test, feature = "driver"))]), false, false),
            (parse_quote!(#[cfg(not(test))]), false, false),
            (parse_quote!(#[cfg(not(not(test)))]), true, true),
            (parse_quote!(#[doc = "test"]), false, false),
        ];
        for (at, (attribute, test, unshipped)) in attributes.into_iter().enumerate() {
            let needed = |off| needs(std::slice::from_ref(&attribute), off);
            assert_eq!((needed(TEST), needed(UNSHIPPED)), (test, unshipped), "attribute {at}");
        }
    }

    #[test]
    fn tests_are_taken_out_wherever_they_are() {
        let mut file: File = parse_quote! {
            fn one() { x.kept() }
            #[cfg(test)]
            mod tests { fn one() { x.gone() } }
            mod inner { #[test] fn one() { x.gone() } fn two() { x.kept() } }
            impl One { #[cfg(test)] fn one() { x.gone() } fn two() { x.kept() } }
            fn behind_tests() { x.kept() }
        };
        let calls = |file: &File| ["gone", "kept"].map(|name| calls_of(file, name).len());
        assert_eq!(calls(&file), [3, 4]);
        without_tests(&mut file);
        assert_eq!(calls(&file), [0, 4]);
    }
}
