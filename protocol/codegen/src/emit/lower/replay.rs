//! Classes of the commands in a journal, by number.

use crate::ir::{Command, Protocol, Replay};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::BTreeMap;

/// Numbers below this are in the table: upstream's, which are counted from 0. Private ones are not.
const TABLE: i32 = 1 << 10;

/// The table of the classes, and a function for the numbers beyond it.
pub(super) fn emit(protocol: &Protocol) -> TokenStream {
    let all: BTreeMap<i32, &Command> = protocol.commands.values().map(|c| (c.number, c)).collect();
    let last = all.range(..TABLE).next_back().map_or(0, |(number, _)| *number);
    let rows = (0..=last).map(|number| name(all.get(&number).map_or(Replay::Breaks, |c| c.replay)));
    let private = all.range(TABLE..).map(|(number, c)| {
        let (number, class) = (Literal::i32_unsuffixed(*number), name(c.replay));
        quote!(#number => Replay::#class,)
    });
    let length = Literal::usize_unsuffixed(last as usize + 1);
    quote! {
        use crate::dispatch::replay::Replay;

        /// Classes by command number. What is no command breaks a journal.
        pub(crate) static CLASSES: [Replay; #length] = {
            use Replay::{Again, Breaks, Nothing, Signals, Submits};
            [#(#rows),*]
        };

        /// The class of a command whose number is not in the table.
        #[cold]
        pub(crate) fn private_class(number: i32) -> Replay {
            match number {
                #(#private)*
                _ => Replay::Breaks,
            }
        }
    }
}

fn name(class: Replay) -> Ident {
    format_ident!("{class:?}")
}
