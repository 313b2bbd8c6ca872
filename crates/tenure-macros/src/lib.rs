//! The attribute `#[leader_only]`. Use it through the crate `tenure`, which has its documentation.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, FnArg, Ident, ItemFn, LitStr, Pat, PatType, ReturnType, Token, parse_macro_input};

/// See `tenure::leader_only`.
#[proc_macro_attribute]
pub fn leader_only(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let settings = parse_macro_input!(attribute as LeaderOnlyArgs);
    let function = parse_macro_input!(item as ItemFn);
    expand(&settings, function).unwrap_or_else(Error::into_compile_error).into()
}

/// `"role"`, `"role", tenure = expr`, `"role", error`
struct LeaderOnlyArgs {
    role: LitStr,
    tenure: Option<Expr>,
    returns_error: bool,
}

impl Parse for LeaderOnlyArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let role =
            input.parse().map_err(|error| Error::new(error.span(), "the role comes first, as in \"aggregation\""))?;
        let mut settings = Self { role, tenure: None, returns_error: false };
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let name: Ident = input.parse()?;
            match name.to_string().as_str() {
                "tenure" => {
                    input.parse::<Token![=]>()?;
                    settings.tenure = Some(input.parse()?);
                }
                "error" => settings.returns_error = true,
                _ => return Err(Error::new(name.span(), "unknown argument: expected `tenure = …` or `error`")),
            }
        }
        Ok(settings)
    }
}

fn expand(settings: &LeaderOnlyArgs, mut function: ItemFn) -> syn::Result<Tokens> {
    if function.sig.asyncness.is_none() {
        return Err(Error::new_spanned(function.sig.fn_token, "`leader_only` requires an `async fn`"));
    }
    let role = &settings.role;
    let tenure = settings.tenure.as_ref().map(|tenure| quote! { #tenure }).or_else(|| tenure_parameter(&function));
    let returned = match &function.sig.output {
        ReturnType::Default => quote! { () },
        ReturnType::Type(_, returned) => quote! { #returned },
    };
    let (output, finish) = if settings.returns_error {
        (quote! { ::core::result::Result<#returned, ::tenure::election::LeaderOnlyError> }, quote! {})
    } else {
        (quote! { ::core::option::Option<#returned> }, quote! { .ok() })
    };
    let body = &function.block;
    let work = quote! { async move { let __done: #returned = (async move #body).await; __done } };
    let block = match tenure {
        // Cloned, because the work may use it, too.
        Some(tenure) => quote! {{
            let __tenure = ::core::clone::Clone::clone(&#tenure);
            __tenure.run_as_leader(#role, #work).await #finish
        }},
        None => quote! {{ ::tenure::election::run_as_leader_installed(#role, #work).await #finish }},
    };
    function.sig.output = syn::parse2(quote! { -> #output })?;
    function.block = syn::parse2(block)?;
    Ok(quote! { #function })
}

/// The parameter with the name `tenure`.
fn tenure_parameter(function: &ItemFn) -> Option<Tokens> {
    function.sig.inputs.iter().find_map(|input| match input {
        FnArg::Typed(PatType { pat, .. }) => match &**pat {
            Pat::Ident(name) if name.ident == "tenure" => {
                let name = &name.ident;
                Some(quote! { #name })
            }
            _ => None,
        },
        FnArg::Receiver(_) => None,
    })
}
