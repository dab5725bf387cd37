# Decides what the WebView shows: the server's page, or why there is none. Other links open in the browser.
.class public final Lorg/edgespec/chat/Pages;
.super Landroid/webkit/WebViewClient;

# The address that was asked for last, with the text that was shared; the page without a server retries it.
.field public wanted:Ljava/lang/String;

.method public constructor <init>()V
    .registers 1
    invoke-direct {p0}, Landroid/webkit/WebViewClient;-><init>()V
    return-void
.end method

.method public onReceivedError(Landroid/webkit/WebView;Landroid/webkit/WebResourceRequest;Landroid/webkit/WebResourceError;)V
    .registers 6
    invoke-interface {p2}, Landroid/webkit/WebResourceRequest;->isForMainFrame()Z
    move-result v0
    if-eqz v0, :end
    const-string v0, "file:///android_asset/offline.html#"
    iget-object v1, p0, Lorg/edgespec/chat/Pages;->wanted:Ljava/lang/String;
    invoke-virtual {v0, v1}, Ljava/lang/String;->concat(Ljava/lang/String;)Ljava/lang/String;
    move-result-object v0
    invoke-virtual {p1, v0}, Landroid/webkit/WebView;->loadUrl(Ljava/lang/String;)V
    :end
    return-void
.end method

# The server's page has arrived, and taken what was shared.
.method public onPageCommitVisible(Landroid/webkit/WebView;Ljava/lang/String;)V
    .registers 4
    const-string v0, "@SERVER@"
    invoke-virtual {p2, v0}, Ljava/lang/String;->startsWith(Ljava/lang/String;)Z
    move-result p2
    if-eqz p2, :end
    iput-object v0, p0, Lorg/edgespec/chat/Pages;->wanted:Ljava/lang/String;
    :end
    return-void
.end method

# True: not here. Web addresses open in the browser; other schemes, which may start apps, do nothing.
.method public shouldOverrideUrlLoading(Landroid/webkit/WebView;Landroid/webkit/WebResourceRequest;)Z
    .registers 6
    invoke-interface {p2}, Landroid/webkit/WebResourceRequest;->getUrl()Landroid/net/Uri;
    move-result-object p2
    invoke-virtual {p2}, Landroid/net/Uri;->toString()Ljava/lang/String;
    move-result-object v0
    const-string v1, "@SERVER@"
    invoke-virtual {v0, v1}, Ljava/lang/String;->startsWith(Ljava/lang/String;)Z
    move-result v1
    if-eqz v1, :elsewhere
    const/4 v0, 0x0
    return v0

    :elsewhere
    const-string v1, "^https?://.*"
    invoke-virtual {v0, v1}, Ljava/lang/String;->matches(Ljava/lang/String;)Z
    move-result v1
    if-eqz v1, :end
    new-instance v0, Landroid/content/Intent;
    const-string v1, "android.intent.action.VIEW"
    invoke-direct {v0, v1, p2}, Landroid/content/Intent;-><init>(Ljava/lang/String;Landroid/net/Uri;)V
    :try
    invoke-virtual {p1}, Landroid/webkit/WebView;->getContext()Landroid/content/Context;
    move-result-object v1
    invoke-virtual {v1, v0}, Landroid/content/Context;->startActivity(Landroid/content/Intent;)V
    :tried
    .catch Landroid/content/ActivityNotFoundException; {:try .. :tried} :end
    :end
    const/4 v0, 0x1
    return v0
.end method
