//! Texts of the product are words: a value in Rust's `Debug` form names types and fields, and cannot be read aloud. `outside::Quoted` quotes text
//! from others, and `outside::Span` gives a time its unit.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Macro, Meta};
use tests::sources::conditions::without_tests;
use tests::sources::product;

/// Macros whose texts are for developers.
const FOR_DEVELOPERS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "trace",
    "unreachable",
];

/// The macros that log for operators; outside of the daemon itself only their texts are checked.
const LOGGING: &[&str] = &["error", "info", "log", "warn"];

/// The lines of texts and of logged values in `Debug` form.
struct Forms {
    lines: Vec<usize>,
    only_logged: bool,
}

impl<'ast> Visit<'ast> for Forms {
    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.look(&name, &call.tokens);
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.look("format", &list.tokens);
        }
    }
}

impl Forms {
    fn of(file: &syn::File, only_logged: bool) -> Vec<usize> {
        let mut forms = Self { lines: Vec::new(), only_logged };
        forms.visit_file(file);
        forms.lines
    }

    /// Looks at the tokens of a macro, and at the macros in them.
    fn look(&mut self, name: &str, tokens: &TokenStream) {
        let is_logged = LOGGING.contains(&name);
        let counts = is_logged || !self.only_logged && !FOR_DEVELOPERS.contains(&name);
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        let text = |at: usize| tokens.get(at).map(ToString::to_string).unwrap_or_default();
        for (at, token) in tokens.iter().enumerate() {
            let line = token.span().start().line;
            match token {
                TokenTree::Group(group) if at > 1 && text(at - 1) == "!" => {
                    self.look(&text(at - 2), &group.stream());
                }
                TokenTree::Group(group) => self.look(name, &group.stream()),
                TokenTree::Literal(literal) if counts && has_debug_form(&literal.to_string()) => {
                    self.lines.push(line);
                }
                TokenTree::Punct(_) if is_logged && text(at) == ":" && text(at + 1) == "?" => {
                    self.lines.push(line);
                }
                _ => {}
            }
        }
    }
}

/// Returns whether a text has a place such as `{name:?}`.
fn has_debug_form(text: &str) -> bool {
    let mut places = text.split('{').skip(1).filter_map(|place| place.split_once('}'));
    places.any(|(place, _)| place.contains(':') && place.ends_with('?'))
}

#[test]
fn texts_have_nothing_in_debug_form() {
    let mut wrong = Vec::new();
    for source in product().into_iter().filter(|source| source.path.starts_with("daemon/")) {
        let mut file = source.parse();
        without_tests(&mut file);
        let lines = Forms::of(&file, !source.path.starts_with("daemon/src/"));
        wrong.extend(lines.into_iter().map(|at| format!("{}:{at}", source.path)));
    }
    assert!(wrong.is_empty(), "texts with values in Debug form:\n{}", wrong.join("\n"));
}

#[test]
fn debug_forms_are_found_where_operators_read_them() {
    let found = |code: &str| {
        let file =
            syn::parse_file(&format!("fn f() {{ {code} }} #[error(\"{{0}}\")] struct E(u8);")).unwrap();
        (Forms::of(&file, false).len(), Forms::of(&file, true).len())
    };
    for code in ["log::warn!(share:? = vm.share; \"a\");", "log::info!(\"{a:?}\");", "error!(\"{:.1?}\", a);"]
    {
        assert_eq!(found(code), (1, 1), "{code}");
    }
    assert_eq!(found("vec![format!(\"{a:#?}\")];"), (1, 0));
    for code in
        ["log::debug!(a:?; \"{a:?}\");", "assert!(a, \"{a:?}\");", "log::warn!(a:%; \"{a} is it? {b:>5}\");"]
    {
        assert_eq!(found(code), (0, 0), "{code}");
    }
    let attribute = syn::parse_file("#[error(\"limit {0:?}\")] struct E(u8);").unwrap();
    assert_eq!(Forms::of(&attribute, false), [1]);
}
