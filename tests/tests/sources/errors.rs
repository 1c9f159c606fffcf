//! Functions of `worker` and `vulkan` fail with types. An error that is only text names neither the party at fault nor the option that helps.

use syn::visit::{self, Visit};
use syn::{GenericArgument, PathArguments, PathSegment, Type};
use tests::sources::conditions::without_tests;
use tests::sources::product;

/// The folders in which no error is text.
const TYPED: &[&str] = &["daemon/vulkan/src/", "daemon/src/worker/"];

/// The lines of results whose errors are text.
#[derive(Default)]
struct Words {
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for Words {
    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        if segment.ident == "Result"
            && let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(GenericArgument::Type(error)) = arguments.args.iter().nth(1)
            && is_text(error)
        {
            self.lines.push(segment.ident.span().start().line);
        }
        visit::visit_path_segment(self, segment);
    }
}

fn is_text(error: &Type) -> bool {
    match error {
        Type::Path(path) => path.path.is_ident("String"),
        Type::Reference(reference) => {
            matches!(&*reference.elem, Type::Path(path) if path.path.is_ident("str"))
        }
        _ => false,
    }
}

#[test]
fn worker_and_vulkan_fail_with_types() {
    let is_typed = |path: &str| TYPED.iter().any(|folder| path.starts_with(folder));
    let sources: Vec<_> = product().into_iter().filter(|source| is_typed(&source.path)).collect();
    assert!(sources.len() > 100, "only {} files were found", sources.len());
    let mut wrong = Vec::new();
    for source in sources {
        let mut file = source.parse();
        without_tests(&mut file);
        let mut words = Words::default();
        words.visit_file(&file);
        wrong.extend(words.lines.into_iter().map(|at| format!("{}:{at}", source.path)));
    }
    assert!(wrong.is_empty(), "results whose errors are text:\n{}", wrong.join("\n"));
}

#[test]
fn errors_that_are_text_are_found() {
    let found = |code: &str| {
        let mut words = Words::default();
        words.visit_file(&syn::parse_file(code).unwrap());
        words.lines.len()
    };
    assert_eq!(found("fn f() -> Result<(), String> {} type A = Result<u8, &'static str>;"), 2);
    assert_eq!(found("fn f() -> std::result::Result<Vec<Result<u8, String>>, Error> {}"), 1);
    assert_eq!(found("fn f() -> Result<String, Error> {} fn g() -> io::Result<String> {}"), 0);
}
