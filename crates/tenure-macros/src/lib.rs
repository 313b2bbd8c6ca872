//! The attribute `#[leader_only]`. Use it through the crate `tenure`, which has its documentation.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, FnArg, Ident, ItemFn, LitStr, Pat, PatType, ReturnType, Token, Type, parse_macro_input};

/// See `tenure::leader_only`.
#[proc_macro_attribute]
pub fn leader_only(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let settings = parse_macro_input!(attribute as LeaderOnlyArgs);
    let function = parse_macro_input!(item as ItemFn);
    expand(&settings, function).unwrap_or_else(Error::into_compile_error).into()
}

/// `"role"`, then in any order `tenure = expr`, `ttl = expr`, `error`
struct LeaderOnlyArgs {
    role: LitStr,
    tenure: Option<Expr>,
    ttl: Option<Expr>,
    returns_error: bool,
}

impl Parse for LeaderOnlyArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let role =
            input.parse().map_err(|error| Error::new(error.span(), "the role comes first, as in \"aggregation\""))?;
        let mut settings = Self { role, tenure: None, ttl: None, returns_error: false };
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
                "ttl" => {
                    input.parse::<Token![=]>()?;
                    settings.ttl = Some(input.parse()?);
                }
                "error" => settings.returns_error = true,
                _ => {
                    return Err(Error::new(
                        name.span(),
                        "unknown argument: expected `tenure = …`, `ttl = …` or `error`",
                    ));
                }
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
    let named = settings.tenure.as_ref().map(|tenure| quote! { #tenure });
    let named = named.or_else(|| has_parameter(&function, "tenure").then(|| quote! { tenure }));
    // Cloned before the work takes the parameters, because the work may use it, too.
    let (tenure, given) = match named {
        Some(tenure) => {
            (quote! { ::core::clone::Clone::clone(&#tenure) }, quote! { ::core::option::Option::Some(&__tenure) })
        }
        None => (quote! { () }, quote! { ::core::option::Option::None }),
    };
    let ttl = match &settings.ttl {
        Some(ttl) => quote! { ::core::option::Option::Some(#ttl) },
        None => quote! { ::core::option::Option::None },
    };
    let (term, inputs): (Vec<FnArg>, Vec<FnArg>) =
        std::mem::take(&mut function.sig.inputs).into_iter().partition(|input| is_named(input, "term"));
    function.sig.inputs = inputs.into_iter().collect();
    // With the pattern and the type that the function gives it.
    let term = term.first().map_or_else(|| quote! { _: ::tenure::TermHandle }, |term| quote! { #term });
    let returned = match &function.sig.output {
        ReturnType::Default => quote! { () },
        ReturnType::Type(_, returned) if matches!(&**returned, Type::ImplTrait(_)) => {
            return Err(Error::new_spanned(
                returned,
                "`leader_only` needs a type that can be named: `impl Trait` cannot",
            ));
        }
        ReturnType::Type(_, returned) => quote! { #returned },
    };
    let (output, finish) = if settings.returns_error {
        (quote! { ::core::result::Result<#returned, ::tenure::election::LeaderOnlyError> }, quote! {})
    } else {
        (quote! { ::core::option::Option<#returned> }, quote! { .ok() })
    };
    let body = &function.block;
    let block = quote! {{
        let __tenure = #tenure;
        let __ttl = #ttl;
        let __work = move |#term| async move {
            let __done: #returned = (async move #body).await;
            __done
        };
        ::tenure::election::run_leader_only(#given, #role, __ttl, __work).await #finish
    }};
    function.sig.output = syn::parse2(quote! { -> #output })?;
    function.block = syn::parse2(block)?;
    Ok(quote! { #function })
}

/// Whether the function has a parameter with this name.
fn has_parameter(function: &ItemFn, name: &str) -> bool {
    function.sig.inputs.iter().any(|input| is_named(input, name))
}

fn is_named(input: &FnArg, name: &str) -> bool {
    match input {
        FnArg::Typed(PatType { pat, .. }) => matches!(&**pat, Pat::Ident(pattern) if pattern.ident == name),
        FnArg::Receiver(_) => false,
    }
}
