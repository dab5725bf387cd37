# The only screen: a WebView of the chat page. The screen stays on while it is in front.
.class public final Lorg/edgespec/chat/MainActivity;
.super Landroid/app/Activity;

.field private web:Landroid/webkit/WebView;
.field private pages:Lorg/edgespec/chat/Pages;

.method public constructor <init>()V
    .registers 1
    invoke-direct {p0}, Landroid/app/Activity;-><init>()V
    return-void
.end method

.method protected onCreate(Landroid/os/Bundle;)V
    .registers 6
    invoke-super {p0, p1}, Landroid/app/Activity;->onCreate(Landroid/os/Bundle;)V

    # getWindow().addFlags(FLAG_KEEP_SCREEN_ON)
    invoke-virtual {p0}, Landroid/app/Activity;->getWindow()Landroid/view/Window;
    move-result-object v0
    const/16 v1, 0x80
    invoke-virtual {v0, v1}, Landroid/view/Window;->addFlags(I)V

    new-instance v0, Landroid/webkit/WebView;
    invoke-direct {v0, p0}, Landroid/webkit/WebView;-><init>(Landroid/content/Context;)V
    iput-object v0, p0, Lorg/edgespec/chat/MainActivity;->web:Landroid/webkit/WebView;
    invoke-virtual {v0}, Landroid/webkit/WebView;->getSettings()Landroid/webkit/WebSettings;
    move-result-object v1
    const/4 v2, 0x1
    invoke-virtual {v1, v2}, Landroid/webkit/WebSettings;->setJavaScriptEnabled(Z)V
    invoke-virtual {v1, v2}, Landroid/webkit/WebSettings;->setDomStorageEnabled(Z)V
    const/4 v2, 0x0
    invoke-virtual {v1, v2}, Landroid/webkit/WebSettings;->setAllowFileAccess(Z)V
    invoke-virtual {v1, v2}, Landroid/webkit/WebSettings;->setAllowContentAccess(Z)V

    new-instance v1, Lorg/edgespec/chat/Pages;
    invoke-direct {v1}, Lorg/edgespec/chat/Pages;-><init>()V
    iput-object v1, p0, Lorg/edgespec/chat/MainActivity;->pages:Lorg/edgespec/chat/Pages;
    invoke-virtual {v0, v1}, Landroid/webkit/WebView;->setWebViewClient(Landroid/webkit/WebViewClient;)V
    invoke-virtual {p0, v0}, Landroid/app/Activity;->setContentView(Landroid/view/View;)V

    # What was shared is not shared again when the system restores the screen.
    if-nez p1, :restored
    invoke-virtual {p0}, Landroid/app/Activity;->getIntent()Landroid/content/Intent;
    move-result-object v0
    invoke-direct {p0, v0}, Lorg/edgespec/chat/MainActivity;->show(Landroid/content/Intent;)V
    return-void

    :restored
    const-string v0, "@SERVER@"
    invoke-direct {p0, v0}, Lorg/edgespec/chat/MainActivity;->load(Ljava/lang/String;)V
    return-void
.end method

.method protected onNewIntent(Landroid/content/Intent;)V
    .registers 4
    invoke-super {p0, p1}, Landroid/app/Activity;->onNewIntent(Landroid/content/Intent;)V

    # Coming back to the app changes nothing.
    const-string v0, "android.intent.action.SEND"
    invoke-virtual {p1}, Landroid/content/Intent;->getAction()Ljava/lang/String;
    move-result-object v1
    invoke-virtual {v0, v1}, Ljava/lang/String;->equals(Ljava/lang/Object;)Z
    move-result v0
    if-eqz v0, :end
    invoke-direct {p0, p1}, Lorg/edgespec/chat/MainActivity;->show(Landroid/content/Intent;)V
    :end
    return-void
.end method

# The chat page, with the text that was shared in its message box. Addresses have a limit (2 MB in
# WebView); what is too long for them is refused, not cut.
.method private show(Landroid/content/Intent;)V
    .registers 5
    const-string v0, "@SERVER@"
    const-string v1, "android.intent.extra.TEXT"
    invoke-virtual {p1, v1}, Landroid/content/Intent;->getCharSequenceExtra(Ljava/lang/String;)Ljava/lang/CharSequence;
    move-result-object v1
    if-eqz v1, :load

    invoke-interface {v1}, Ljava/lang/CharSequence;->length()I
    move-result p1
    const v2, 0x186a0 # 100,000
    if-le p1, v2, :append
    const-string v1, "Not shared: longer than 100,000 characters"
    const/4 v2, 0x1
    invoke-static {p0, v1, v2}, Landroid/widget/Toast;->makeText(Landroid/content/Context;Ljava/lang/CharSequence;I)Landroid/widget/Toast;
    move-result-object v1
    invoke-virtual {v1}, Landroid/widget/Toast;->show()V
    goto :load

    :append
    const-string v2, "#share="
    invoke-virtual {v0, v2}, Ljava/lang/String;->concat(Ljava/lang/String;)Ljava/lang/String;
    move-result-object v0
    invoke-virtual {v1}, Ljava/lang/Object;->toString()Ljava/lang/String;
    move-result-object v1
    invoke-static {v1}, Landroid/net/Uri;->encode(Ljava/lang/String;)Ljava/lang/String;
    move-result-object v1
    invoke-virtual {v0, v1}, Ljava/lang/String;->concat(Ljava/lang/String;)Ljava/lang/String;
    move-result-object v0

    :load
    invoke-direct {p0, v0}, Lorg/edgespec/chat/MainActivity;->load(Ljava/lang/String;)V
    return-void
.end method

.method private load(Ljava/lang/String;)V
    .registers 3
    iget-object v0, p0, Lorg/edgespec/chat/MainActivity;->pages:Lorg/edgespec/chat/Pages;
    iput-object p1, v0, Lorg/edgespec/chat/Pages;->wanted:Ljava/lang/String;
    iget-object v0, p0, Lorg/edgespec/chat/MainActivity;->web:Landroid/webkit/WebView;
    invoke-virtual {v0, p1}, Landroid/webkit/WebView;->loadUrl(Ljava/lang/String;)V
    return-void
.end method

# Back goes through the conversations; from the page that says the server is missing it leaves the app.
.method public onBackPressed()V
    .registers 4
    iget-object v0, p0, Lorg/edgespec/chat/MainActivity;->web:Landroid/webkit/WebView;
    invoke-virtual {v0}, Landroid/webkit/WebView;->getUrl()Ljava/lang/String;
    move-result-object v1
    if-eqz v1, :leave
    const-string v2, "@SERVER@"
    invoke-virtual {v1, v2}, Ljava/lang/String;->startsWith(Ljava/lang/String;)Z
    move-result v1
    if-eqz v1, :leave
    invoke-virtual {v0}, Landroid/webkit/WebView;->canGoBack()Z
    move-result v1
    if-eqz v1, :leave
    invoke-virtual {v0}, Landroid/webkit/WebView;->goBack()V
    return-void
    :leave
    invoke-super {p0}, Landroid/app/Activity;->onBackPressed()V
    return-void
.end method
