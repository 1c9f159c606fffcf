//! `Lower` and `Raise` of structs and unions, and the two chain functions.

use crate::emit::output::Rows;
use crate::emit::spelling::field;
use crate::ir::{Len, Member, Protocol, Scalar, Shape, Struct, Type, Union, UnionMember};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

/// Flags with some bits that only the host knows; a hand-written function translates a guest's flags (`vulkan::lowering::handle_types`).
const TRANSLATED: &str = "VkExternalMemoryHandleTypeFlags";

/// Implementations for the structs of one module, those of numbers alone as rows of a macro; unions go with `types`.
pub(super) fn emit(protocol: &Protocol, module: &str, rows: &mut Rows) -> TokenStream {
    let is_same =
        |m: &Member| !is_family(m) && matches!(m.ty, Type::Scalar(scalar) if scalar != Scalar::Size);
    let (same, others): (Vec<_>, Vec<_>) =
        protocol.structs_of(module).partition(|s| s.is_plain() && s.members.iter().all(is_same));
    let same = rows.blocks(same.into_iter().map(|s| {
        let (name, s_type) = (format_ident!("{}", s.names.rust), s.s_type.as_ref().map_or(0, |t| t.value));
        let s_type = Literal::i32_unsuffixed(s_type);
        (quote!(#name = #s_type), s.members.iter().map(|m| field(&m.rust)).map(|m| quote!(#m)).collect())
    }));
    let same = (!same.is_empty()).then(|| quote!(plain_structures! { #same }));
    let structs = others.into_iter().map(|s| structure(protocol, s));
    let unions: Vec<_> =
        if module == "types" { protocol.unions.values().map(union_type).collect() } else { vec![] };
    quote!(#same #(#structs)* #(#unions)*)
}

fn structure(protocol: &Protocol, s: &Struct) -> TokenStream {
    let lower = lower_struct(s);
    let raise = s.output.then(|| raise_struct(protocol, s));
    quote!(#lower #raise)
}

fn lower_struct(s: &Struct) -> TokenStream {
    let name = format_ident!("{}", s.names.rust);
    let lifetime = s.needs_lifetime.then(|| quote!(<'_>));
    let header = s.s_type.as_ref().map(|t| {
        let value = t.value;
        quote!(s_type: #value, p_next: l.chain(self.p_next)?,)
    });
    let fields = s.members.iter().map(|m| {
        let target = field(&m.rust);
        // A driver has not yet written its output when the struct is lowered.
        let value = lower_member(m, &quote!(self), !s.output);
        quote!(#target: #value,)
    });
    let l = match header.is_none() && !s.members.iter().any(uses_lowering) {
        true => quote!(_),
        false => quote!(l),
    };
    quote! {
        impl Lower for venus::#name #lifetime {
            type Sys = sys::#name;
            fn lower(&self, #l: &Lowering<'_>) -> Result<sys::#name, Fault> {
                Ok(sys::#name { #header #(#fields)* })
            }
        }
    }
}

fn uses_lowering(m: &Member) -> bool {
    match m.shape {
        Shape::Value if is_family(m) => true,
        Shape::Value | Shape::Fixed(_) => matches!(m.ty, Type::Handle(_) | Type::Struct(_) | Type::Union(_)),
        _ => m.has_field(),
    }
}

/// Returns whether a member names queue families, which a guest sees in an order of its own (`vulkan::driver::families`).
fn is_family(m: &Member) -> bool {
    ["queue_family_index", "queue_family_indices"].iter().any(|name| m.rust.ends_with(name))
}

/// The lowered value of `owner.member`, for structs and for parameters the driver only reads. If the driver `reads` it, the driver sees only
/// enumeration values and flags that the registry names.
pub(super) fn lower_member(m: &Member, owner: &TokenStream, reads: bool) -> TokenStream {
    if !m.has_field() {
        return quote!(ptr::null());
    }
    let name = field(&m.rust);
    let value = quote!(#owner.#name);
    match &m.shape {
        Shape::Value if is_family(m) => quote!(l.family(#value)),
        Shape::Array(_) if is_family(m) => quote!(l.families(#value)?),
        Shape::Value => lower_value(&m.ty, &value, reads),
        Shape::Fixed(_) => match &m.ty {
            Type::Scalar(Scalar::Size) => quote!(#value.map(|x| x as usize)),
            Type::Scalar(_) => value,
            Type::Enum(_) if reads => quote!(known_fixed(#value)?),
            Type::Flags(name) if reads && name != TRANSLATED => quote!(#value.map(|x| x.known().0)),
            Type::Enum(_) | Type::Flags(_) => quote!(#value.map(|x| x.0)),
            Type::Handle(_) => quote!(l.fixed_handles(&#value)?),
            _ => quote!(l.fixed(&#value)?),
        },
        Shape::String => quote!(#value.map_or(ptr::null(), |s| s.as_ptr())),
        Shape::Strings(_) => quote!(l.strings(#value)?),
        Shape::Blob(_) if m.is_const => quote!(l.plain_array(#value)),
        Shape::Blob(_) => quote!(l.writable_array(#value)?),
        Shape::Pointer => lower_pointer(m, &value),
        Shape::Array(_) => lower_array(m, &value),
    }
}

fn lower_value(ty: &Type, value: &TokenStream, reads: bool) -> TokenStream {
    match ty {
        Type::Scalar(Scalar::Size) => quote!(#value as usize),
        Type::Scalar(_) => value.clone(),
        Type::Enum(_) if reads => quote!(known(#value)?),
        Type::Flags(name) if reads && name != TRANSLATED => quote!(#value.known().0),
        Type::Enum(_) | Type::Flags(_) => quote!(#value.0),
        Type::Handle(_) => quote!(l.handle(#value)?),
        Type::Struct(_) | Type::Union(_) => quote!(#value.lower(l)?),
        Type::Opaque(_) => quote!(ptr::null()),
    }
}

fn lower_pointer(m: &Member, value: &TokenStream) -> TokenStream {
    match (&m.ty, m.is_const) {
        (Type::Struct(_) | Type::Union(_), true) => quote!(l.pointer(#value)?),
        (Type::Struct(_) | Type::Union(_), false) => quote!(l.out_pointer(#value)?),
        (Type::Handle(_), _) => quote!(l.handles(#value.map(std::slice::from_ref))?),
        (Type::Scalar(_), true) => quote!(l.plain_pointer(#value)),
        (Type::Scalar(_), false) => quote!(l.writable_array(#value.map(std::slice::from_ref))?),
        (Type::Enum(_), true) => quote!(l.known_array(#value.map(std::slice::from_ref))?),
        (_, true) => quote!(l.mapped(#value.map(std::slice::from_ref), |x| x.known().0)?),
        (_, false) => quote!(l.mapped(#value.map(std::slice::from_ref), |x| x.0)?.cast_mut()),
    }
}

fn lower_array(m: &Member, value: &TokenStream) -> TokenStream {
    match (&m.ty, m.is_const) {
        (Type::Struct(_) | Type::Union(_), true) => quote!(l.array(#value)?),
        (Type::Struct(_) | Type::Union(_), false) => quote!(l.out_array(#value)?),
        (Type::Handle(_), _) => quote!(l.handles(#value)?),
        (Type::Scalar(Scalar::Size), _) => quote!(l.mapped(#value, |x| x as usize)?),
        (Type::Scalar(_), true) => quote!(l.plain_array(#value)),
        (Type::Scalar(_), false) => quote!(l.writable_array(#value)?),
        (Type::Enum(_), true) => quote!(l.known_array(#value)?),
        (_, true) => quote!(l.mapped(#value, |x| x.known().0)?),
        (_, false) => quote!(l.mapped(#value, |x| x.0)?.cast_mut()),
    }
}

fn raise_struct(protocol: &Protocol, s: &Struct) -> TokenStream {
    let name = format_ident!("{}", s.names.rust);
    let ty = if s.needs_lifetime { quote!(venus::#name<'a>) } else { quote!(venus::#name) };
    let header = s.s_type.as_ref().map(|_| quote!(p_next: raise_chain(self.p_next, sys.p_next, arena)?,));
    let fields = s.members.iter().filter(|m| m.has_field()).map(|m| {
        let target = field(&m.rust);
        let value = raise_member(protocol, s, m);
        quote!(#target: #value,)
    });
    quote! {
        impl<'a> Raise<'a> for #ty {
            fn raise(&self, sys: &sys::#name, arena: &'a Arena) -> Result<Self, Fault> {
                let _ = arena;
                Ok(venus::#name { #header #(#fields)* })
            }
        }
    }
}

/// The codec's value of `sys.member` after the driver wrote it; `self` is the partial value from the request.
fn raise_member(protocol: &Protocol, s: &Struct, m: &Member) -> TokenStream {
    let name = field(&m.rust);
    match &m.shape {
        Shape::Value => match &m.ty {
            Type::Scalar(Scalar::Size) => quote!(sys.#name as u64),
            Type::Scalar(_) => quote!(sys.#name),
            Type::Enum(_) | Type::Flags(_) => {
                let ty = format_ident!("{}", protocol.rust_name(&m.ty));
                let known = is_masked(&m.ty).then(|| quote!(.known()));
                quote!(venus::#ty(sys.#name) #known)
            }
            Type::Struct(_) => quote!(self.#name.raise(&sys.#name, arena)?),
            Type::Handle(_) | Type::Union(_) | Type::Opaque(_) => quote!(self.#name),
        },
        Shape::Fixed(_) => match &m.ty {
            Type::Scalar(_) => quote!(sys.#name),
            Type::Enum(_) | Type::Flags(_) => {
                let raise = raise_numbers(protocol, &m.ty);
                quote!(sys.#name.map(#raise))
            }
            Type::Struct(_) => quote!(raise_fixed(&self.#name, &sys.#name, arena)?),
            Type::Handle(_) | Type::Union(_) | Type::Opaque(_) => quote!(self.#name),
        },
        Shape::Array(len) | Shape::Blob(len) if !m.is_const => {
            let count = written_count(s, len, &quote!(sys));
            raise_array(protocol, &m.ty, &quote!(self.#name), &quote!(sys.#name), &count)
        }
        _ => quote!(self.#name),
    }
}

/// Returns whether the driver may set bits of this type that the codec does not know: they belong to extensions that no guest has.
fn is_masked(ty: &Type) -> bool {
    matches!(ty, Type::Flags(name) if name != TRANSLATED)
}

/// Makes enumerations or flags of the driver's numbers.
fn raise_numbers(protocol: &Protocol, ty: &Type) -> TokenStream {
    let name = format_ident!("{}", protocol.rust_name(ty));
    if is_masked(ty) { quote!(|x| venus::#name(x).known()) } else { quote!(venus::#name) }
}

fn written_count(s: &Struct, len: &Len, owner: &TokenStream) -> TokenStream {
    match len {
        Len::Member(member) if s.members.iter().any(|m| m.rust == *member) => {
            let name = field(member);
            quote!(#owner.#name as usize)
        }
        _ => quote!(usize::MAX),
    }
}

/// An array the driver wrote, at most `count` elements of the request's.
pub(super) fn raise_array(
    protocol: &Protocol,
    ty: &Type,
    partial: &TokenStream,
    pointer: &TokenStream,
    count: &TokenStream,
) -> TokenStream {
    match ty {
        Type::Scalar(_) => quote!(raise_plain(#partial, #pointer, #count, arena)?),
        Type::Enum(_) | Type::Flags(_) => {
            let raise = raise_numbers(protocol, ty);
            quote!(raise_mapped(#partial, #pointer, #count, #raise, arena)?)
        }
        Type::Struct(_) => quote!(raise_array(#partial, #pointer, #count, arena)?),
        Type::Handle(_) | Type::Union(_) | Type::Opaque(_) => partial.clone(),
    }
}

fn union_type(u: &Union) -> TokenStream {
    let name = format_ident!("{}", u.names.rust);
    let lifetime = u.needs_lifetime.then(|| quote!(<'_>));
    let arms = u.members.iter().map(|m| {
        let variant = format_ident!("{}", m.variant);
        let target = field(&m.member.rust);
        let value = match (&m.member.shape, &m.member.ty) {
            (Shape::Value, ty) => lower_value(ty, &quote!((*value)), true),
            (_, Type::Enum(_) | Type::Flags(_)) => quote!(value.map(|x| x.0)),
            _ => quote!(*value),
        };
        quote!(venus::#name::#variant(value) => sys::#name { #target: #value },)
    });
    let is_looked_up =
        |m: &UnionMember| matches!(m.member.ty, Type::Handle(_) | Type::Struct(_) | Type::Union(_));
    let l = if u.members.iter().any(is_looked_up) { quote!(l) } else { quote!(_) };
    quote! {
        impl Lower for venus::#name #lifetime {
            type Sys = sys::#name;
            fn lower(&self, #l: &Lowering<'_>) -> Result<sys::#name, Fault> {
                Ok(match self { #(#arms)* })
            }
        }
    }
}

/// `chain.rs`.
pub(super) fn emit_chain(protocol: &Protocol) -> TokenStream {
    let chained: Vec<&Struct> = protocol.structs.values().filter(|s| !s.extends.is_empty()).collect();
    let lower = chained.iter().map(|s| {
        let name = format_ident!("{}", s.names.rust);
        quote!(ChainStruct::#name(s) => l.linked(*s, p_next),)
    });
    let raise = chained.iter().map(|s| {
        let name = format_ident!("{}", s.names.rust);
        if s.output {
            quote!(ChainStruct::#name(s) => ChainStruct::#name(raise_linked(*s, sys, arena)?),)
        } else {
            quote!(ChainStruct::#name(_) => *next,)
        }
    });
    quote! {
        use crate::lowering::prelude::*;
        use protocol::venus::generated::ChainStruct;

        /// Lowers one chain element in front of `p_next`.
        #[allow(clippy::too_many_lines, reason = "one line per struct")]
        pub(crate) fn lower_chain_struct(
            next: &ChainStruct<'_>, p_next: *const c_void, l: &Lowering<'_>,
        ) -> Result<*const c_void, Fault> {
            match next { #(#lower)* }
        }

        /// Raises one chain element from where it was lowered to.
        #[allow(clippy::too_many_lines, reason = "one line per struct")]
        pub(crate) fn raise_chain_struct<'a>(
            next: &ChainStruct<'a>, sys: *const c_void, arena: &'a Arena,
        ) -> Result<ChainStruct<'a>, Fault> {
            Ok(match next { #(#raise)* })
        }
    }
}
