//! Execution of commands: lower the parameters, call the driver, raise the driver's output.
//!
//! This file generates three kinds: creation (one object id is bound to a handle), destruction, and plain calls. A command that does more has a
//! hand-written function (`inputs/execution.toml`), and this file only dispatches it.

use super::structs;
use crate::emit::spelling::field;
use crate::ir::{Command, Direction, Len, Level, Param, Protocol, Replay, Return, Scalar, Shape, Type};
use crate::replay::is_only_recorded as is_recorded;
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{format_ident, quote};

/// `VK_QUEUE_GRAPHICS_BIT`, `VK_QUEUE_COMPUTE_BIT` and `VK_QUEUE_TRANSFER_BIT`: a family that a guest sees has one of them.
const EVERY_QUEUE: u32 = 7;

/// The way in which a command is executed.
enum Kind<'a> {
    /// `vkCreate…`: the parameter that receives the handle.
    Create(&'a Param),
    /// `vkDestroy…`: the parameter that names the object.
    Destroy(&'a Param),
    /// Anything else that can be generated.
    Plain,
    /// A command with a hand-written function in this module of `vulkan`.
    ByHand(&'a str),
    /// A command that never reaches the executor.
    Transport,
}

fn kind(command: &Command) -> Kind<'_> {
    if command.level == Level::Transport {
        return Kind::Transport;
    }
    if let Some(module) = &command.execution.by_hand {
        return Kind::ByHand(module);
    }
    if let Some(param) = handle_out(command) {
        return Kind::Create(param);
    }
    if command.names.vk.starts_with("vkDestroy") {
        return Kind::Destroy(&command.params[1]);
    }
    Kind::Plain
}

/// The parameter that receives a handle.
fn handle_out(command: &Command) -> Option<&Param> {
    command.params.iter().find(|p| {
        p.direction == Direction::Out
            && p.member.shape == Shape::Pointer
            && matches!(p.member.ty, Type::Handle(_))
    })
}

/// The parameter of a child that a device makes, by hand or not: if it is not made, its id becomes a tombstone.
fn child_out(command: &Command) -> Option<&Param> {
    let creates = command.level == Level::Device && command.names.vk.starts_with("vkCreate");
    creates.then(|| handle_out(command)).flatten()
}

/// The generated executors of one module.
pub(super) fn emit(protocol: &Protocol, module: &str) -> TokenStream {
    let functions = protocol.commands_of(module).filter_map(|c| match kind(c) {
        Kind::Plain if is_recorded(c) => Some(recording(protocol, c)),
        Kind::ByHand(_) | Kind::Transport => None,
        Kind::Create(param) => Some(function(protocol, c, Some(param))),
        Kind::Destroy(param) => Some(destruction(protocol, c, param)),
        Kind::Plain => Some(function(protocol, c, None)),
    });
    quote!(#(#functions)*)
}

/// The executor of a recorded command.
fn recording(protocol: &Protocol, c: &Command) -> TokenStream {
    let vk = &c.names.vk;
    assert!(c.ret == Return::Void && outs(c).next().is_none(), "{vk}: a recorded command answers nothing");
    let name = format_ident!("{}", c.snake);
    let request = request_type(protocol, c, &quote!('_));
    let doc = format!("`{vk}`.");
    let lowering = lower_params(c, None);
    let arguments = c.params.iter().skip(1).map(|p| argument(p, None));
    // Every family that a guest sees can copy, so a command that all kinds of family execute needs no check.
    let queues = c.queues;
    let demand = (queues & EVERY_QUEUE != EVERY_QUEUE && queues != 0)
        .then(|| quote!(r.demand_queue(venus::QueueFlags(#queues))?;));
    let c = if c.params.len() > 1 { quote!(c) } else { quote!(_) };
    quote! {
        #[doc = #doc]
        pub(crate) fn #name(r: &mut Recorder<'_>, #c: &#request) -> Result<(), Fault> {
            let CommandBuffer { raw, device, .. } = r.command_buffer;
            let Some(function) = device.table.#name else { return Err(Fault::missing(#vk)) };
            #demand
            #lowering
            unsafe { function(*raw, #(#arguments),*) };
            Ok(())
        }
    }
}

/// The executor of a destruction: the object is taken out of the table, and destroyed when no other object uses it any more.
fn destruction(protocol: &Protocol, c: &Command, destroyed: &Param) -> TokenStream {
    let (name, reply) = (format_ident!("{}", c.snake), format_ident!("{}Reply", c.names.rust));
    let (request, reply_type) = (request_type(protocol, c, &quote!('a)), reply_type(protocol, c));
    let doc = format!("`{}`.", c.names.vk);
    let (owner, id) = (field(&c.params[0].member.rust), field(&destroyed.member.rust));
    quote! {
        #[doc = #doc]
        pub(crate) fn #name<'a>(call: &Call<'a>, c: &#request) -> Result<#reply_type, Fault> {
            call.device(c.#owner)?;
            call.take(c.#id)?;
            Ok(venus::#reply {})
        }
    }
}

/// One executor.
fn function(protocol: &Protocol, c: &Command, created: Option<&Param>) -> TokenStream {
    let name = format_ident!("{}", c.snake);
    let request = request_type(protocol, c, &quote!('a));
    let reply_type = reply_type(protocol, c);
    let reply = format_ident!("{}Reply", c.names.rust);
    let doc = format!("`{}`.", c.names.vk);
    let vk = &c.names.vk;
    let owner = owner(c);
    let lowering = lower_params(c, created);
    let arguments = c.params.iter().skip(1).map(|p| argument(p, created));
    let new = created.map(|_| quote!(let mut created = 0u64;));
    let names = created.map(|_| quote!(let names = Names::default();));
    let invoke = quote!(unsafe { function(handle, #(#arguments),*) });
    let bind = created.map(|p| {
        let id = field(&p.member.rust);
        match c.execution.checked {
            Some(_) => quote!(call.bind_made_of(c.#id, created, &device, result, state, names)?;),
            None => quote!(call.created_of(c.#id, created, &device, result, names)?;),
        }
    });
    let (result, ret) = match c.ret {
        Return::Void => (quote!(#invoke;), None),
        Return::Result => (quote!(let result = #invoke;), Some(quote!(result: venus::VkResult(result),))),
        Return::Value(Scalar::Size) => (quote!(let ret = #invoke;), Some(quote!(ret: ret as u64,))),
        Return::Value(_) => (quote!(let ret = #invoke;), Some(quote!(ret,))),
    };
    let fields = raised_fields(protocol, c, created);
    let arena = raises(c, created).then(|| quote!(let arena = call.arena;));
    quote! {
        #[doc = #doc]
        pub(crate) fn #name<'a>(call: &Call<'a>, c: &#request) -> Result<#reply_type, Fault> {
            #owner
            let Some(function) = table.#name else { return Err(Fault::missing(#vk)) };
            #names
            #lowering
            #new
            #result
            #bind
            #arena
            Ok(venus::#reply { #ret #fields })
        }
    }
}

/// Looks the first parameter up: `handle`, `table`, and for device children `device`.
fn owner(c: &Command) -> TokenStream {
    let id = field(&c.params[0].member.rust);
    match c.level {
        Level::Instance => quote! {
            let instance = call.instance(c.#id)?;
            let (handle, table) = (instance.raw(), &instance.table);
        },
        Level::PhysicalDevice => quote! {
            let physical = call.physical_device(c.#id)?;
            let (handle, table) = (physical.raw(), &physical.instance.table);
        },
        Level::Device => quote! {
            let device = call.device(c.#id)?;
            let (handle, table) = (device.raw(), &device.table);
        },
        Level::CommandBuffer | Level::Queue | Level::Global | Level::Transport => {
            panic!("{}: commands of this level are executed by hand", c.names.vk)
        }
    }
}

/// `let (a, b) = { let l = call.lowering(); (…, …) };`: the object table is locked no longer than that.
fn lower_params(c: &Command, created: Option<&Param>) -> TokenStream {
    let params: Vec<_> =
        c.params.iter().skip(1).filter(|p| p.member.has_field() && !is(p, created)).collect();
    let recorded = c.level == Level::CommandBuffer;
    let check = c.execution.checked.as_ref().map(|module| {
        let check = by_hand(module, c);
        let subject = if recorded { quote!(state) } else { quote!(&device) };
        let check = quote!(#check(&l, #subject, c)?;);
        if created.is_some() { quote!(let state = #check) } else { check }
    });
    if params.is_empty() && check.is_none() {
        return quote!();
    }
    let state = created.and(check.as_ref()).map(|_| quote!(state,));
    let names: Vec<Ident> = params.iter().map(|p| field(&p.member.rust)).collect();
    let values = params.iter().map(|p| match p.direction {
        Direction::In => structs::lower_member(&p.member, &quote!(c), true),
        Direction::Out | Direction::InOut => lower_out(p),
    });
    let values = quote!(#(#values,)*);
    let lock = match (recorded, &check) {
        (_, None) if !names_lowering(&values) => quote!(),
        (true, None) => quote!(let (l, _) = r.lowering();),
        (true, Some(_)) => quote!(let (l, state) = r.lowering();),
        (false, _) if created.is_some() => quote!(let l = call.creating(&names);),
        (false, _) => quote!(let l = call.lowering();),
    };
    quote! {
        let (#state #(#names,)*) = {
            #lock
            #check
            (#state #values)
        };
    }
}

/// Returns whether the lowering `l`, which locks the object table, looks up or stores any of the values.
fn names_lowering(values: &TokenStream) -> bool {
    values.clone().into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == "l",
        TokenTree::Group(group) => names_lowering(&group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// The hand-written function of a command in this module of `vulkan`.
fn by_hand(module: &str, c: &Command) -> TokenStream {
    let module = module.split("::").map(|name| format_ident!("{name}"));
    let name = format_ident!("{}", c.snake);
    quote!(crate::#(#module::)*#name)
}

/// Memory the driver may write, initialised from the request's partial value.
fn lower_out(p: &Param) -> TokenStream {
    let name = field(&p.member.rust);
    let value = quote!(c.#name);
    let one = quote!(#value.map(std::slice::from_ref));
    match (&p.member.shape, &p.member.ty) {
        (Shape::Pointer, Type::Struct(_)) => quote!(l.out_pointer(#value)?),
        (Shape::Pointer, Type::Scalar(Scalar::Size)) => quote!(l.mapped(#one, |x| x as usize)?.cast_mut()),
        (Shape::Pointer, Type::Scalar(_)) => quote!(l.writable_array(#one)?),
        (Shape::Pointer, _) => quote!(l.mapped(#one, |x| x.0)?.cast_mut()),
        (Shape::Array(_), Type::Struct(_)) => quote!(l.out_array(#value)?),
        (Shape::Array(_) | Shape::Blob(_), Type::Scalar(_)) => quote!(l.writable_array(#value)?),
        (Shape::Array(_), Type::Enum(_) | Type::Flags(_)) => quote!(l.mapped(#value, |x| x.0)?.cast_mut()),
        (shape, ty) => panic!("{}: out parameter {shape:?} of {ty:?} is executed by hand", p.member.vk),
    }
}

fn argument(p: &Param, created: Option<&Param>) -> TokenStream {
    if is(p, created) {
        return quote!(&raw mut created);
    }
    if !p.member.has_field() {
        return quote!(ptr::null());
    }
    let name = field(&p.member.rust);
    if matches!(p.member.shape, Shape::Fixed(_)) { quote!(&raw const #name) } else { quote!(#name) }
}

fn is(p: &Param, other: Option<&Param>) -> bool {
    other.is_some_and(|o| o.member.vk == p.member.vk)
}

fn outs(c: &Command) -> impl Iterator<Item = &Param> {
    c.params.iter().filter(|p| p.direction != Direction::In && p.member.has_field())
}

fn raises(c: &Command, created: Option<&Param>) -> bool {
    outs(c).any(|p| !is(p, created))
}

fn raised_fields(protocol: &Protocol, c: &Command, created: Option<&Param>) -> TokenStream {
    let fields = outs(c).map(|p| {
        let name = field(&p.member.rust);
        if is(p, created) {
            return quote!(#name: c.#name,);
        }
        let value = raised(protocol, c, p);
        quote!(#name: #value,)
    });
    quote!(#(#fields)*)
}

fn raised(protocol: &Protocol, c: &Command, p: &Param) -> TokenStream {
    let name = field(&p.member.rust);
    let one = |constructor: TokenStream| quote!(raise_value(c.#name, #name, #constructor, arena)?);
    match (&p.member.shape, &p.member.ty) {
        (Shape::Pointer, Type::Struct(_)) => quote!(raise_pointer(c.#name, #name, arena)?),
        (Shape::Pointer, Type::Scalar(Scalar::Size)) => one(quote!(|x| x as u64)),
        (Shape::Pointer, Type::Scalar(_)) => one(quote!(|x| x)),
        (Shape::Pointer, ty) => {
            let ty = format_ident!("{}", protocol.rust_name(ty));
            one(quote!(venus::#ty))
        }
        (Shape::Array(len) | Shape::Blob(len), ty) => {
            let count = written_count(c, len);
            structs::raise_array(protocol, ty, &quote!(c.#name), &quote!(#name), &count)
        }
        (shape, _) => panic!("{}: out parameter of shape {shape:?}", p.member.vk),
    }
}

/// Returns the code for the number of elements that the driver filled: the count that it wrote, or all.
fn written_count(c: &Command, len: &Len) -> TokenStream {
    match len {
        Len::Deref(name) if outs(c).any(|p| p.member.rust == *name) => {
            let name = field(name);
            quote!(read_count(#name))
        }
        _ => quote!(usize::MAX),
    }
}

fn borrows(protocol: &Protocol, p: &Param) -> bool {
    p.member.has_field()
        && (!matches!(p.member.shape, Shape::Value | Shape::Fixed(_))
            || protocol.needs_lifetime(&p.member.ty))
}

fn request_type(protocol: &Protocol, c: &Command, lifetime: &TokenStream) -> TokenStream {
    let name = format_ident!("{}", c.names.rust);
    let lifetime = c.params.iter().any(|p| borrows(protocol, p)).then(|| quote!(<#lifetime>));
    quote!(venus::#name #lifetime)
}

fn reply_type(protocol: &Protocol, c: &Command) -> TokenStream {
    let name = format_ident!("{}Reply", c.names.rust);
    let lifetime = outs(c).any(|p| borrows(protocol, p)).then(|| quote!(<'a>));
    quote!(venus::#name #lifetime)
}

/// `dispatch.rs`.
pub(super) fn emit_dispatch(protocol: &Protocol) -> TokenStream {
    let mut commands: Vec<&Command> = protocol.commands.values().collect();
    commands.sort_by_key(|c| c.number);
    let arms = commands.iter().map(|c| arm(c));
    let of_groups = |graphics: bool| {
        let groups = protocol.groups.iter().filter(move |group| group.graphics == graphics);
        groups.flat_map(|group| protocol.commands_of(&group.name))
    };
    let graphics: Vec<_> = of_groups(true).map(|c| format_ident!("{}", c.names.rust)).collect();
    let mut recorded: Vec<&Command> = of_groups(false).filter(|c| is_recorded(c)).collect();
    recorded.sort_by_key(|c| c.number);
    let records = recorded.iter().map(|c| {
        let (variant, path) = (format_ident!("{}", c.names.rust), path(c));
        quote!(venus::#variant::NUMBER => |r, reader| #path(r, &venus::#variant::decode(reader)?),)
    });
    quote! {
        use crate::dispatch::prelude::*;
        use protocol::cursor::Writer;
        use protocol::venus::generated::Command;

        /// Executes one command and writes its reply if one is wanted.
        #[allow(clippy::too_many_lines, reason = "one arm per command")]
        pub(crate) fn execute<'a>(
            call: &Call<'a>, command: &Command<'a>, reply: Option<&mut Writer<'_>>,
        ) -> Result<(), ContextLost> {
            match command { #(#arms)* }
        }

        /// What decodes and records a command of this number; none if it cannot be recorded without a graphics queue.
        #[inline]
        pub(crate) fn record(number: i32) -> Option<Record> {
            Some(match number {
                #(#records)*
                _ => return None,
            })
        }

        /// Whether a command has no meaning without a graphics queue.
        pub(crate) fn is_graphics(command: &Command<'_>) -> bool {
            matches!(command, #(Command::#graphics(_))|*)
        }
    }
}

/// Returns the path of the function that executes a command.
fn path(c: &Command) -> TokenStream {
    match kind(c) {
        Kind::ByHand(module) => by_hand(module, c),
        _ => {
            let (module, name) = (format_ident!("{}", c.module), format_ident!("{}", c.snake));
            quote!(super::#module::#name)
        }
    }
}

fn arm(c: &Command) -> TokenStream {
    let variant = format_ident!("{}", c.names.rust);
    if let Kind::Transport = kind(c) {
        let vk = &c.names.vk;
        return quote!(Command::#variant(_) => Err(ContextLost::misplaced(#vk)),);
    }
    let path = path(c);
    if is_recorded(c) {
        let (id, reply) = (field(&c.params[0].member.rust), format_ident!("{}Reply", c.names.rust));
        return quote! {
            Command::#variant(c) => {
                record_one(call, c.#id, |r| #path(r, c))?;
                if let Some(w) = reply { venus::#reply {}.encode(w); }
                Ok(())
            }
        };
    }
    let on_failure = match child_out(c) {
        Some(p) => {
            let id = field(&p.member.rust);
            quote!(call.not_created(c.#id, result)?;)
        }
        _ if c.level == Level::CommandBuffer => {
            let id = field(&c.params[0].member.rust);
            quote!(spoil(call, c.#id, result);)
        }
        _ => c.execution.failed.as_ref().map_or_else(TokenStream::new, |module| {
            let function = by_hand(module, c);
            quote!(#function(call, c, result);)
        }),
    };
    let before = c.execution.before.as_ref().map(|module| {
        let function = by_hand(module, c);
        quote!(#function(call, c)?;)
    });
    let after = c.execution.after.as_ref().map(|module| {
        let function = by_hand(module, c);
        quote!(let value = #function(call, c, value)?;)
    });
    let failed = failed_reply(c);
    let failure = match on_failure.is_empty() {
        true if c.ret != Return::Result => quote!(|_| Ok(#failed)),
        true => quote!(|result| Ok(#failed)),
        false => quote!(|result| { #on_failure Ok(#failed) }),
    };
    let outcome = match c.level {
        Level::Device if c.ret == Return::Result => quote!(call.tell(|| #path(call, c))),
        _ => quote!(#path(call, c)),
    };
    // A successor that executes the command again might succeed, or fail with another error.
    let is_repeated = matches!(c.replay, Replay::Again | Replay::Signals | Replay::Submits);
    let heed = (is_repeated && c.ret == Return::Result).then(|| quote!(call.heed(value.result);));
    quote! {
        Command::#variant(c) => {
            #before
            let value = settle(#outcome, #failure)?;
            #heed
            #after
            if let Some(w) = reply { value.encode(w); }
            Ok(())
        }
    }
}

/// The reply of a command that was not executed: its out parameters return unchanged.
fn failed_reply(c: &Command) -> TokenStream {
    if c.ret == Return::Result {
        return quote!(c.failed(venus::VkResult(result)));
    }
    let reply = format_ident!("{}Reply", c.names.rust);
    let ret = (c.ret != Return::Void).then(|| quote!(ret: 0,));
    let echoed = outs(c).map(|p| {
        let name = field(&p.member.rust);
        quote!(#name: c.#name,)
    });
    quote!(venus::#reply { #ret #(#echoed)* })
}
